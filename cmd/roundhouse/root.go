package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"roundhouse/internal/config"
)

// Exit statuses of every command.
const (
	exitOK     = 0
	exitFailed = 1 // the command could not do what it was asked, or the tool failed
	exitUsage  = 2 // the command line or the configuration is wrong
)

// endSignals end a command that waits.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// shownError ends a command with its status after the command has said everything
// itself.
type shownError struct{ status int }

func (shownError) Error() string { return "shown already" }

// run executes one command line and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return exitOK
	}
	if shown, ok := errors.AsType[shownError](err); ok {
		return shown.status
	}
	if invalid, ok := errors.AsType[*config.Invalid](err); ok {
		for _, p := range invalid.Problems {
			fmt.Fprintf(stderr, "roundhouse: %s\n", p)
		}
		return exitUsage
	}
	fmt.Fprintf(stderr, "roundhouse: %s\n", strings.TrimSuffix(err.Error(), "."))
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "roundhouse: see '%s --help'\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "roundhouse",
		Short: "Share MCP servers between many agent sessions",
		Long: `Roundhouse stands between many agent sessions and the MCP servers and models that they use:
any number of sessions share one process per server.

Results go to standard output, everything else to standard error. The exit status
is 0 on success, 1 when the command failed, and 2 when the command line or the
configuration is wrong.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpCommand(root))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	connect := connectCommand()
	connect.ValidArgsFunction = completeServers
	root.AddCommand(serveCommand(), connect, psCommand(), sessionsCommand(), instancesCommand(), toolsCommand(), callCommand(), runCommand(), restartCommand(), logsCommand(), eventsCommand(),
		tracesCommand(), exportCommand(), configCommand(), completionCommand(), versionCommand())
	return root
}

// helpCommand is cobra's, except that an unknown command is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return usageError{err}
			}
			if err := noSuchCommand(cmd, rest); err != nil {
				return err
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// noSuchCommand refuses arguments of a command that has only subcommands.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // letters that may differ
	msg := fmt.Sprintf("there is no command %q", strings.TrimSpace(cmd.CommandPath()+" "+args[0]))
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		msg += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{errors.New(msg)}
}

// arguments checks the number of a command's arguments.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usageError{fmt.Errorf("this command takes %s", what)}
		}
		return nil
	}
}

// environment returns a variable, or fallback when it is unset or empty.
func environment(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}
