// A server of the official TypeScript SDK 2 on stdio that speaks both eras. Its tools say in which one they were
// called, ask for a name, and work for a while.

import { McpServer, acceptedContent, inputRequired } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod/v4';

const say = (text) => ({ content: [{ type: 'text', text }] });

serveStdio(({ era }) => {
  const server = new McpServer({ name: 'both', version: '1' });
  server.registerTool('era', { inputSchema: z.object({}) }, async () => say(era));
  server.registerTool('list', { inputSchema: z.object({}), outputSchema: z.array(z.number()) }, async () => ({ ...say('[1,2]'), structuredContent: [1, 2] }));
  server.registerTool('name', { inputSchema: z.object({}) }, async (_, context) => {
    if (era !== 'modern') return say('nobody');
    const answer = acceptedContent(context.mcpReq.inputResponses, 'who')?.name;
    if (answer) return say(`hello ${answer}`);
    const form = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
    return inputRequired({ inputRequests: { who: inputRequired.elicit({ message: 'Who?', requestedSchema: form }) } });
  });
  server.registerTool('fail', { inputSchema: z.object({}) }, async () => {
    throw new Error('as asked');
  });
  server.registerTool('more', { inputSchema: z.object({}) }, async () => {
    server.registerTool('late', { inputSchema: z.object({}) }, async () => say('late'));
    return say('done');
  });
  return server;
});
