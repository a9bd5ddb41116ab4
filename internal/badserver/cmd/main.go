// Command cmd is the misbehaving MCP server of package badserver as a program.
package main

import (
	"os"

	"roundhouse/internal/badserver"
)

func main() {
	os.Exit(badserver.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
