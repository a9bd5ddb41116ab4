// Package badserver is an MCP server over stdio that misbehaves on request.
//
// Tests of roundhouse start it as a child process ([Path]) and choose its faults
// with switches and tools. It is written by hand on the standard library and
// shares no code with roundhouse, so that it can send what a correct library
// refuses to send. Without switches it is a small, correct server for protocol
// versions 2024-11-05 to 2025-11-25, with tools, prompts, resources,
// subscriptions, logging, completions, progress and cancellation; calls run
// concurrently. Its own request ids count from 1, so they collide with those of
// its client.
//
// # Switches
//
// Output at start, and how lines are written:
//
//	-banner              print a line of text first
//	-json-log            print JSON that is not JSON-RPC first: two log objects (one has an id) and an array
//	-blank               print an empty line first
//	-ansi                print a line with terminal colours first
//	-noise-between       repeat the noise chosen above (the banner if none) between each request and its response
//	-banner-no-newline   put the banner directly before the initialize response, on the same line
//	-bom                 begin the output with a UTF-8 byte order mark
//	-cr                  end lines with CR LF
//	-no-final-newline    end with a line that has no line end: the answer of the tool exit, else a log notification
//	-stderr-flood        write so many bytes to stderr before reading anything
//
// Start and handshake:
//
//	-start-delay         wait so long before reading anything
//	-never-start         never answer initialize
//	-fail-start          print an error on stderr and exit with status 3
//	-early-notification  send notifications before answering initialize
//	-early-ping          ping the client before answering initialize, and answer only when the client did
//	-version             speak only this protocol version
//	-no-cap              leave out these capabilities and their methods: tools, prompts, resources, logging, completions
//	-shape-by-caps       offer the tool sampled only to a client that declared sampling
//
// Life and death:
//
//	-exit-after          exit with status 1 so long after answering initialize
//	-crash-on            exit with status 2 when this tool is called
//	-crash-times-file    a file that holds how many failures are left for -fail-start, -exit-after and -crash-on; each takes one off, at 0 they do nothing
//	-diary               append lines to this file: "call TOOL" when a call comes, "done TOOL" before its answer, "end" on EOF; the pid stands before each
//	-diary-as            what stands before them in the place of the pid
//	-exit-fast           on EOF, exit without waiting for calls in flight (default true)
//	-linger              on EOF, wait so long before exiting
//	-ignore-eof          stay when stdin ends
//	-ignore-term         ignore SIGTERM
//	-grandchild          start a grandchild at start, its pid on stderr: the values of how in the tool spawn
//
// Input:
//
//	-slow-read           read one line of stdin every 200 ms
//	-no-read             read nothing after answering initialize
//
// Catalogue:
//
//	-tools               add so many tools
//	-odd-names           add tools with long, dotted, spaced and CJK names, and two that differ only after character 60
//	-page-size           items on a page of every list; 0 is one page
//	-pages               pad the lists of tools and resources to at least so many pages (of 10 if -page-size is 0)
//	-loop-cursor         name the same next page for ever
//	-fail-list           answer these lists with an error: tools, prompts, resources
//	-fail-list-times     fail only the first so many times; 0 is always
//	-fail-list-after     serve so many lists well before failing
//
// Responses; all but the first two concern tools/call only:
//
//	-result-before-id    write the member result before the member id
//	-batch               write each response but that of initialize as an array of one
//	-dup-id              answer twice
//	-unknown-id          also send a response to a request that nobody made
//	-float-id            answer with the id spelled differently: 1 as 1.0, "a" as "\u0061"
//	-error-null-id       also send an error whose id is null
//
// # Tools
//
// A result is one text unless stated; "JSON" is such a text that decodes into the
// Go type named.
//
//	echo{text}                          the text
//	whoami{env}                         JSON [WhoAmI]; env names the variables whose values to show
//	count                               how often this process ran count
//	slow{ms, steps, late}               waits, with steps progress notifications if there is a token, and late more after the result
//	cancelled                           JSON array of the request ids in the cancel notifications seen
//	ledger{file, mode, note}            appends a line to file (pid, mode, note), then: answer, crash, hang, close_stdout, error
//	big{bytes}                          a text of that size
//	raw{result}                         that JSON (or the JSON in that string) verbatim as the result
//	emit{line, base64}                  writes that line (or those bytes, without line end) to stdout, then answers
//	dup                                 a result with duplicate keys
//	structured                          structured content with integers above 2^53; output schema with $defs
//	log{level, text, count, when}       sends log notifications, unless the level set is higher, during the call or 50 ms after
//	ask{kind, when, timeoutMs}          asks the client: sampling, elicitation, roots or ping, during the call or 50 ms after; JSON [Asked]
//	asked                               JSON array of [Asked]: what asking after calls brought
//	add_tool{name, kind}                adds a tool (or kind prompts, resources), sends list_changed, answers
//	remove_tool{name, kind}             removes one, sends list_changed, answers
//	flap{n, kind}                       sends list_changed n times
//	touch{uri, force}                   sends resources/updated if the URI is subscribed to, or force is true
//	exit{code, answer}                  exits, having answered if answer is true
//	kill                                kills its own process with SIGKILL
//	stop                                stops its own process with SIGSTOP
//	close_stdout                        closes stdout and lives on
//	spawn{how}                          starts a grandchild: background, setsid, double_fork, ignore_term, hold_stdout, hold_stderr; its pid
//	stats                               JSON [Stats]
//
// A tool that a switch or add_tool added answers with its name and arguments.
// What is left behind on purpose (grandchildren, servers that ignore EOF) ends by
// itself after ten minutes.
package badserver
