package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"

	"roundhouse/internal/wire"
)

func toolsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tools [SERVER]",
		Short: "List the tools of a server, or of all",
		Long: `Tools asks the server, through the daemon and in a session of its own, which tools it
has; without a name it asks all servers together, whose tools are called
SERVER__TOOL there. Servers that do not run are started.`,
		Example:           "  roundhouse tools\n  roundhouse tools everything",
		Args:              arguments(0, 1, "at most one argument, the server"),
		ValidArgsFunction: completeServers,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the tools as JSON, with their schemas, as the server sent them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		server := ""
		if len(args) == 1 {
			if server = args[0]; server == "" {
				return usageError{errors.New("the server's name is empty; leave it out for all servers")}
			}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		tools, err := a.tools(ctx, server)
		if err != nil {
			return err
		}
		if asJSON {
			list := bytes.Join(tools, []byte(","))
			return printJSON(cmd.OutOrStdout(), fmt.Appendf(nil, `{"tools":[%s]}`, list))
		}
		if len(tools) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "roundhouse: there is no tool")
			return nil
		}
		t := newTable(cmd.OutOrStdout(), "TOOL", "DESCRIPTION")
		for _, raw := range tools {
			tool, err := readTool(raw)
			if err != nil {
				return err
			}
			fmt.Fprintf(t, "%s\t%s\n", oneLine(tool.Name), brief(tool.Description, 100))
		}
		return t.Flush()
	}
	return cmd
}

// tool is what is shown of one.
type tool struct{ Name, Description string }

func readTool(raw []byte) (tool, error) {
	var t tool
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, fmt.Errorf("read a tool: %w", err)
	}
	return t, nil
}

// maxPages is how many pages of a list are read before it counts as endless.
const maxPages = 1000

// tools lists the tools of a server, or with "" those of all, as they were sent.
func (a *api) tools(ctx context.Context, server string) ([][]byte, error) {
	m, err := a.dialMCP(ctx, server)
	if err != nil {
		return nil, err
	}
	defer m.close(ctx)
	var tools [][]byte
	params := []byte("{}")
	for range maxPages {
		raw, err := m.call(ctx, wire.ToolsList, params)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tools      []json.RawMessage
			NextCursor string
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read the list of tools: %w", err)
		}
		for _, t := range page.Tools {
			tools = append(tools, t)
		}
		if page.NextCursor == "" {
			return tools, nil
		}
		params = append(append([]byte(`{"cursor":`), wire.Quote(page.NextCursor)...), '}')
	}
	return nil, fmt.Errorf("the list of tools does not end after %d pages", maxPages)
}
