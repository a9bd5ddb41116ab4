package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, have it read anew, or print the schema",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(configCheckCommand(), configReloadCommand(), configSchemaCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Say everything that is wrong with a configuration file",
		Long: `Check reads a configuration file as serve does, without starting anything, and
prints every problem with file:line:column. The exit status is 2 if serve would
refuse the file, 1 if a server in it is disabled by a problem, else 0.`,
		Example: "  roundhouse config check .mcp.json",
		Args:    arguments(1, 1, "one argument, the file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(config.Options{File: args[0]})
			invalid, refused := errors.AsType[*config.Invalid](err)
			if err != nil && !refused {
				return err
			}
			out := cmd.OutOrStdout()
			problems := []config.Problem{}
			if refused {
				problems = append(problems, invalid.Problems...)
			} else {
				problems = append(problems, cfg.Problems...)
			}
			switch {
			case asJSON:
				if err := json.NewEncoder(out).Encode(map[string]any{"file": args[0], "problems": problems}); err != nil {
					return err
				}
			case len(problems) == 0:
				fmt.Fprintf(out, "%s: no problems, servers: %d\n", args[0], len(cfg.Servers))
			default:
				for _, p := range problems {
					fmt.Fprintln(out, p)
				}
			}
			switch {
			case refused:
				return shownError{exitUsage}
			case slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Severity == config.Error }):
				return shownError{exitFailed}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func configReloadCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the daemon read its configuration anew",
		Long: `Reload has the daemon read its configuration file anew, as it does by itself when the
file changes. Servers that are the same run on. Others end when their calls have, at
the latest after pool.drainDelay, and start as they are now with the next request.
The exit status is 1 if the file is broken, which changes nothing, or if a server in it
is disabled by a problem.`,
		Example: "  roundhouse config reload",
		Args:    arguments(0, 0, "no arguments"),
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var raw json.RawMessage
		if err := a.send(cmd.Context(), http.MethodPost, "/api/v1/reload", &raw); err != nil {
			return err
		}
		var done control.Reloaded
		if err := decode(raw, &done); err != nil {
			return err
		}
		if asJSON {
			if err := printJSON(cmd.OutOrStdout(), raw); err != nil {
				return err
			}
		} else {
			printReload(cmd, done)
		}
		if done.Refused || slices.ContainsFunc(done.Problems, func(p config.Problem) bool { return p.Severity == config.Error }) {
			return shownError{exitFailed}
		}
		return nil
	}
	return cmd
}

// printReload shows what came of a reload.
func printReload(cmd *cobra.Command, done control.Reloaded) {
	say := func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: "+format+"\n", args...)
	}
	for _, p := range done.Problems {
		say("%s", p)
	}
	if done.Refused {
		say("the file is broken; the daemon goes on with what it read before")
		return
	}
	if len(done.NeedsRestart) > 0 {
		say("these settings change only when the daemon is restarted: %s", strings.Join(done.NeedsRestart, ", "))
	}
	out := cmd.OutOrStdout()
	for _, x := range []struct {
		what    string
		servers []string
	}{{"added", done.Added}, {"changed", done.Changed}, {"removed", done.Removed}} {
		for _, name := range x.servers {
			fmt.Fprintf(out, "%s %s\n", x.what, oneLine(name))
		}
	}
	if len(done.Added)+len(done.Changed)+len(done.Removed) == 0 {
		fmt.Fprintln(out, "no server has changed")
	}
}

func configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration file",
		Example: "  roundhouse config schema > roundhouse.schema.json",
		Args:    arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), string(config.Schema()))
			return err
		},
	}
}
