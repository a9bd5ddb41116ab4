package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/control"
	"roundhouse/internal/session"
)

// completionWait bounds what a shell waits for the daemon: nobody asked for it.
const completionWait = 2 * time.Second

var shells = []string{"bash", "zsh", "fish", "powershell"}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a shell's completion script",
		Long: `Completion prints the script by which a shell (bash, zsh, fish or powershell) completes
commands, flags, and the names of servers, tools and sessions of the daemon that runs.

  bash        roundhouse completion bash > ~/.local/share/bash-completion/completions/roundhouse
  zsh         roundhouse completion zsh > "${fpath[1]}/_roundhouse"
  fish        roundhouse completion fish > ~/.config/fish/completions/roundhouse.fish
  powershell  roundhouse completion powershell | Out-String | Invoke-Expression`,
		Example:   "  roundhouse completion bash",
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				return usageError{fmt.Errorf("this command takes one argument, the shell: bash, zsh, fish or powershell")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			default:
				return root.GenPowerShellCompletionWithDesc(out)
			}
		},
	}
}

// completeServers completes the only argument of a command, a server that can be used.
func completeServers(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	var list struct{ Servers []control.Server }
	if daemonOf(cmd).get(ctx, "/api/v1/servers", &list) == nil { // else there is nothing to propose
		for _, s := range list.Servers {
			if s.DisabledReason == "" {
				names = append(names, described(s.Name, s.Description))
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeCall completes a server and then one of its tools.
func completeCall(cmd *cobra.Command, args []string, start string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return completeServers(cmd, args, start)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	var names []cobra.Completion
	tools, err := daemonOf(cmd).tools(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp // there is nothing to propose
	}
	for _, raw := range tools {
		if t, err := readTool(raw); err == nil {
			names = append(names, described(t.Name, t.Description))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSessions completes the only argument of a command, a session.
func completeSessions(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	var list struct{ Sessions []session.Info }
	if daemonOf(cmd).get(ctx, "/api/v1/sessions", &list) == nil { // else there is nothing to propose
		for _, s := range list.Sessions {
			names = append(names, described(s.ID, clientNames(s.Clients)))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTraces completes the first argument of a command, a recorded session.
func completeTraces(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	list, err := daemonOf(cmd).traces(ctx, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp // there is nothing to propose
	}
	for _, r := range list {
		names = append(names, described(r.ID, r.State+", "+counted(r.Turns, "turn")))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// described is a completion with a description for the shells that show one.
func described(name, text string) cobra.Completion {
	return cobra.CompletionWithDesc(oneLine(name), brief(text, 60))
}
