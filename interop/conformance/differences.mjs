// Differences between a server and the same server through roundhouse that are meant; docs/conformance.md says more about each.
//
// scenarios  in which it is seen
// check      which check; without one, any of the scenarios
// ways       in which columns; without one, in all
// fails      true if the scenario fails for it; otherwise the check only does not apply
// why

const json = 'a lone answer comes as JSON and not as an event stream';

export const differences = [
  { scenarios: ['server-sse-multiple-streams'], check: 'server-sse-streams-functional', why: json },
  { scenarios: ['server-sse-polling'], check: 'server-sse-retry-field', why: json },
  { scenarios: ['server-sse-polling'], check: 'server-sse-priming-event', why: json },
  {
    scenarios: ['server-stateless'],
    check: 'sep-2575-server-sends-tools-list-changed-on-subscription',
    why: 'the list that the server calls changed is the same as before',
  },
  {
    ways: ['bridged'],
    fails: true,
    scenarios: ['elicitation-sep1034-defaults', 'elicitation-sep1330-enums', 'tools-call-elicitation', 'tools-call-sampling'],
    why: 'these tools ask their client while they run, which the server itself refuses in the new era',
  },
  {
    ways: ['bridged'],
    fails: true,
    scenarios: ['server-stateless'],
    check: 'sep-2575-http-server-method-not-found-404',
    why: 'the server refuses an unknown method with a status and text, which do not say that it is the method',
  },
  {
    ways: ['bridged'],
    fails: true,
    scenarios: [
      'basic-elicitation', 'basic-list-roots', 'basic-sampling', 'capability-check', 'ignore-extra-params', 'missing-input-response',
      'multi-round', 'multiple-input-requests', 'non-tool-request', 'request-state', 'result-type', 'tampered-state',
    ].map((name) => `input-required-result-${name}`), // prettier-ignore
    why: 'a server of the older era asks while a call runs, and clients of the new era cannot be asked then',
  },
];
