package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"roundhouse/internal/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or print its schema",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(configCheckCommand(), configSchemaCommand())
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
