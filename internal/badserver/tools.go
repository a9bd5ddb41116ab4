package badserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// tool is one tool of the server.
type tool struct {
	name   string
	about  string
	args   string // the properties of its input schema: "name:type name:type"
	extras string // further members of its definition, each with a leading comma
	// run returns the result to send; a result it has sent by itself is not sent
	// again. Ctx ends when the client cancels the call.
	run func(ctx context.Context, c *call) ([]byte, error)
}

const (
	readOnly    = `,"annotations":{"readOnlyHint":true,"idempotentHint":true,"openWorldHint":false}`
	destructive = `,"annotations":{"title":"Destructive","readOnlyHint":false,"destructiveHint":true,"idempotentHint":false}`

	structuredSchema = `,"outputSchema":{"type":"object","properties":{"id":{"$ref":"#/$defs/big"},"list":{"type":"array","items":{"$ref":"#/$defs/big"}}},` +
		`"required":["id"],"$defs":{"big":{"type":"integer","minimum":0}}}`
	structuredText = `{"id":9007199254740993,"list":[18446744073709551615,1.0,1e2]}`
)

// tools are the tools, in the order in which they are listed.
var tools = []tool{
	{"echo", "Answers with the text.", "text:string", readOnly + `,"_meta":{"x-rank":9007199254740993,"x-é":"\u00e9"}`, runEcho},
	{"whoami", "Tells what this process is.", "env:array", readOnly, runWhoAmI},
	{"count", "Counts its calls in this process.", "", "", runCount},
	{"slow", "Takes its time.", "ms:integer steps:integer late:integer", `,"execution":{"taskSupport":"forbidden"}`, runSlow},
	{"cancelled", "Lists the cancelled ids.", "", readOnly, runCancelled},
	{"ledger", "Appends a line to a file.", "file:string mode:string note:string", destructive, runLedger},
	{"big", "Answers with many bytes.", "bytes:integer", readOnly, runBig},
	{"raw", "Answers with the given result.", "result:string", readOnly, runRaw},
	{"emit", "Writes a line to stdout.", "line:string base64:string", "", runEmit},
	{"dup", "Answers with duplicate keys.", "", readOnly, runDup},
	{"structured", "Answers with structured content.", "", readOnly + structuredSchema, runStructured},
	{"log", "Logs.", "level:string text:string count:integer when:string", "", runLog},
	{"ask", "Asks the client.", "kind:string when:string timeoutMs:integer", "", runAsk},
	{"asked", "Lists what asking after calls brought.", "", readOnly, runAsked},
	{"add_tool", "Adds to a list.", "name:string kind:string", "", runAdd},
	{"remove_tool", "Removes from a list.", "name:string kind:string", "", runRemove},
	{"flap", "Says often that a list changed.", "n:integer kind:string", "", runFlap},
	{"touch", "Says that a resource changed.", "uri:string force:boolean", "", runTouch},
	{"exit", "Exits.", "code:integer answer:boolean", destructive, runExit},
	{"kill", "Kills this process.", "", destructive, runKill},
	{"stop", "Stops this process.", "", destructive, runStop},
	{"close_stdout", "Closes stdout.", "", destructive, runCloseStdout},
	{"spawn", "Starts a grandchild.", "how:string", destructive, runSpawn},
	{"stats", "Counts what was received.", "", readOnly, runStats},
}

// definition returns the tool as an entry of tools/list.
func (t tool) definition() string {
	var properties []string
	for arg := range strings.FieldsSeq(t.args) {
		name, kind, _ := strings.Cut(arg, ":")
		properties = append(properties, fmt.Sprintf(`%q:{"type":%q}`, name, kind))
	}
	return fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object","properties":{%s}}%s}`,
		t.name, t.about, strings.Join(properties, ","), t.extras)
}

// runAdded runs every tool that a switch or add_tool added.
func runAdded(_ context.Context, c *call) ([]byte, error) {
	return textResult(fmt.Sprintf("%s called with %s", c.name, c.args)), nil
}

func runEcho(_ context.Context, c *call) ([]byte, error) {
	var p struct{ Text string }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	return textResult(p.Text), nil
}

// WhoAmI is the result of the tool whoami.
type WhoAmI struct {
	PID int    `json:"pid"`
	Cwd string `json:"cwd"`
	// EnvNames are the names of all environment variables, sorted; Env holds the
	// values of those that were asked for and exist.
	EnvNames []string          `json:"envNames"`
	Env      map[string]string `json:"env"`
	// ClientCapabilities and ClientInfo are those of the last initialize.
	ClientCapabilities json.RawMessage `json:"clientCapabilities,omitempty"`
	ClientInfo         json.RawMessage `json:"clientInfo,omitempty"`
	ProtocolVersion    string          `json:"protocolVersion"`
	// Calls counts tools/call, this one included.
	Calls       int `json:"calls"`
	Initialize  int `json:"initialize"`
	Initialized int `json:"initialized"`
}

func runWhoAmI(_ context.Context, c *call) ([]byte, error) {
	var p struct{ Env []string }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find working directory: %w", err)
	}
	who := WhoAmI{PID: os.Getpid(), Cwd: cwd, Env: map[string]string{}}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		who.EnvNames = append(who.EnvNames, name)
		if slices.Contains(p.Env, name) {
			who.Env[name] = value
		}
	}
	slices.Sort(who.EnvNames)
	s := c.s
	s.mu.Lock()
	who.ClientCapabilities, who.ClientInfo, who.ProtocolVersion = s.caps, s.client, s.version
	who.Calls = s.received["tools/call"]
	who.Initialize = s.received["initialize"]
	who.Initialized = s.received["notifications/initialized"]
	s.mu.Unlock()
	return jsonResult(who)
}

func runCount(_ context.Context, c *call) ([]byte, error) {
	c.s.mu.Lock()
	c.s.counter++
	n := c.s.counter
	c.s.mu.Unlock()
	return textResult(fmt.Sprint(n)), nil
}

func runSlow(ctx context.Context, c *call) ([]byte, error) {
	var p struct{ MS, Steps, Late int }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	pause := time.Duration(p.MS) * time.Millisecond / time.Duration(max(p.Steps, 1))
	for step := range max(p.Steps, 1) {
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
		if p.Steps > 0 {
			c.progress(step+1, p.Steps)
		}
	}
	result := textResult(fmt.Sprintf("slept %d ms", p.MS))
	c.reply(result, nil)
	for step := range p.Late {
		c.progress(p.Steps+step+1, p.Steps+p.Late)
	}
	return result, nil
}

func runCancelled(_ context.Context, c *call) ([]byte, error) {
	c.s.mu.Lock()
	ids := append([]json.RawMessage{}, c.s.cancelled...)
	c.s.mu.Unlock()
	return jsonResult(ids)
}

func runLedger(ctx context.Context, c *call) ([]byte, error) {
	var p struct{ File, Mode, Note string }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"", "answer", "crash", "hang", "close_stdout", "error"}, p.Mode) {
		return nil, invalidParams("unknown mode %q", p.Mode)
	}
	line := fmt.Sprintf("%d %s", os.Getpid(), p.Mode)
	if p.Note != "" {
		line += " " + p.Note
	}
	if err := appendLine(p.File, line+"\n"); err != nil {
		return nil, err
	}
	switch p.Mode {
	case "crash":
		fmt.Fprintln(c.s.stderr, "badserver: crashing after the ledger")
		c.s.out.exit(exitCrash, nil)
	case "hang":
		<-ctx.Done()
	case "close_stdout":
		c.s.out.close()
	case "error":
		return nil, errors.New("the ledger refuses")
	}
	return textResult("written"), nil
}

func appendLine(name, line string) (err error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(line); err != nil {
		return err
	}
	return f.Sync()
}

func runBig(_ context.Context, c *call) ([]byte, error) {
	var p struct{ Bytes int }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	return textResult(strings.Repeat("x", max(p.Bytes, 0))), nil
}

func runRaw(_ context.Context, c *call) ([]byte, error) {
	var p struct{ Result json.RawMessage }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	if p.Result == nil {
		return nil, invalidParams("result is missing")
	}
	var text string
	if json.Unmarshal(p.Result, &text) == nil {
		return []byte(text), nil
	}
	return p.Result, nil
}

func runEmit(_ context.Context, c *call) ([]byte, error) {
	var p struct{ Line, Base64 string }
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(p.Base64)
	if err != nil {
		return nil, invalidParams("base64: %v", err)
	}
	if p.Line != "" {
		data = append(data, c.s.out.lines([]byte(p.Line))...)
	}
	c.s.out.raw(data)
	return textResult("emitted"), nil
}

func runDup(context.Context, *call) ([]byte, error) {
	return []byte(`{"content":[{"type":"text","text":"first","text":"second"}],"isError":true,"isError":false,"x":1,"X":2,"x":3}`), nil
}

func runStructured(context.Context, *call) ([]byte, error) {
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"structuredContent":%s}`, quote(structuredText), structuredText), nil
}

func runLog(ctx context.Context, c *call) ([]byte, error) {
	p := struct {
		Level, Text, When string
		Count             int
	}{Level: "info", Text: "hello", Count: 1}
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	level := slices.Index(levels, p.Level)
	if level < 0 {
		return nil, invalidParams("unknown level %q", p.Level)
	}
	c.s.mu.Lock()
	quiet := level < slices.Index(levels, c.s.level)
	c.s.mu.Unlock()
	if quiet {
		return textResult("logged 0"), nil
	}
	result := textResult(fmt.Sprintf("logged %d", p.Count))
	if p.When == "after" {
		c.reply(result, nil)
		if err := wait(ctx, afterCall); err != nil {
			return nil, err
		}
	}
	params := fmt.Sprintf(`{"level":%q,"logger":"badserver","data":%s}`, p.Level, quote(p.Text))
	for range p.Count {
		c.s.out.notify("notifications/message", params)
	}
	return result, nil
}

// afterCall is how long after its answer a tool acts that acts after the call.
const afterCall = 50 * time.Millisecond

func runAsk(ctx context.Context, c *call) ([]byte, error) {
	p := struct {
		Kind, When string
		TimeoutMS  int
	}{TimeoutMS: 5000}
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	if _, ok := questions[p.Kind]; !ok {
		return nil, invalidParams("unknown kind %q", p.Kind)
	}
	timeout := time.Duration(p.TimeoutMS) * time.Millisecond
	if p.When != "after" {
		return jsonResult(c.s.ask(ctx, p.Kind, timeout))
	}
	result := textResult("asking later")
	c.reply(result, nil)
	if err := wait(ctx, afterCall); err != nil {
		return nil, err
	}
	got := c.s.ask(ctx, p.Kind, timeout)
	c.s.mu.Lock()
	c.s.asked = append(c.s.asked, got)
	c.s.mu.Unlock()
	return result, nil
}

func runAsked(_ context.Context, c *call) ([]byte, error) {
	c.s.mu.Lock()
	asked := append([]Asked{}, c.s.asked...)
	c.s.mu.Unlock()
	return jsonResult(asked)
}

// listArgs are the arguments of the tools that change lists.
type listArgs struct {
	Name, Kind string
	N          int
}

func (c *call) listArgs() (listArgs, error) {
	p := listArgs{Kind: "tools"}
	if err := c.decode(&p); err != nil {
		return p, err
	}
	if !slices.Contains([]string{"tools", "prompts", "resources"}, p.Kind) {
		return p, invalidParams("unknown kind %q", p.Kind)
	}
	return p, nil
}

func runAdd(_ context.Context, c *call) ([]byte, error) {
	p, err := c.listArgs()
	if err != nil {
		return nil, err
	}
	c.s.change(p.Kind, p.Name, true)
	return textResult("added"), nil
}

func runRemove(_ context.Context, c *call) ([]byte, error) {
	p, err := c.listArgs()
	if err != nil {
		return nil, err
	}
	c.s.change(p.Kind, p.Name, false)
	return textResult("removed"), nil
}

func runFlap(_ context.Context, c *call) ([]byte, error) {
	p, err := c.listArgs()
	if err != nil {
		return nil, err
	}
	for range p.N {
		c.s.out.notify("notifications/"+p.Kind+"/list_changed", `{}`)
	}
	return textResult("flapped"), nil
}

func runTouch(_ context.Context, c *call) ([]byte, error) {
	var p struct {
		URI   string
		Force bool
	}
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	send := p.Force || c.s.subs[p.URI]
	c.s.mu.Unlock()
	if !send {
		return textResult("nobody subscribed"), nil
	}
	c.s.out.notify("notifications/resources/updated", `{"uri":`+quote(p.URI)+`}`)
	return textResult("touched"), nil
}

func runExit(_ context.Context, c *call) ([]byte, error) {
	var p struct {
		Code   int
		Answer bool
	}
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	var last []byte
	switch {
	case p.Answer:
		last = response(c.id, "result", textResult("exiting"), c.s.opts.resultBeforeID)
	case c.s.opts.noFinalNewline:
		last = bye()
	}
	c.s.out.exit(p.Code, last)
	return nil, nil
}

func runKill(ctx context.Context, _ *call) ([]byte, error) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return nil, err
	}
	if err := self.Kill(); err != nil {
		return nil, err
	}
	return nil, wait(ctx, leftover) // The signal may take a moment.
}

func runStop(ctx context.Context, _ *call) ([]byte, error) {
	if err := stopSelf(); err != nil {
		return nil, err
	}
	// The signal may take a moment to stop this thread.
	return textResult("stopped and continued"), wait(ctx, afterCall)
}

func runCloseStdout(_ context.Context, c *call) ([]byte, error) {
	c.s.out.close()
	return textResult("lost"), nil
}

func runSpawn(_ context.Context, c *call) ([]byte, error) {
	p := struct{ How string }{How: "background"}
	if err := c.decode(&p); err != nil {
		return nil, err
	}
	pid, err := c.s.spawn(p.How)
	if err != nil {
		return nil, err
	}
	return textResult(fmt.Sprint(pid)), nil
}

func runStats(_ context.Context, c *call) ([]byte, error) {
	return jsonResult(c.s.stats())
}
