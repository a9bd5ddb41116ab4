// Command roundhouse is the daemon that stands between agent sessions and the MCP
// servers that they use, and the command line to it.
package main

import (
	"os"

	"roundhouse/internal/process"
)

func main() {
	process.ReaperMain() // returns unless this process is the reaper of a server
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
