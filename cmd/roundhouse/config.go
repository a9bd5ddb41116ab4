package main

import (
	"encoding/json"
	"fmt"

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
			if err != nil {
				return err
			}
			broken := false
			for _, p := range cfg.Problems {
				broken = broken || p.Severity == config.Error
				if !asJSON {
					fmt.Fprintln(cmd.OutOrStdout(), p)
				}
			}
			if asJSON {
				problems := append([]config.Problem{}, cfg.Problems...)
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"file": cfg.File, "problems": problems}); err != nil {
					return err
				}
			}
			if broken {
				return errShown
			}
			if len(cfg.Problems) == 0 && !asJSON {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: no problems in %d servers\n", args[0], len(cfg.Servers))
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
