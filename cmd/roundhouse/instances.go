package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/instance"
)

func instancesCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "instances",
		Short: "List the instances of exclusive servers, or have one given back",
		Long: `Instances lists the instances of servers whose sharing is "exclusive", which session
has which one, and who waits for one, the longest first. Sessions of other principals
are shown to an admin only.`,
		Example: "  roundhouse instances\n  roundhouse instances --json",
		Args:    noSuchCommand,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var raw json.RawMessage
		if err := a.get(cmd.Context(), "/api/v1/instances", &raw); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), raw)
		}
		var list struct{ Servers []instance.Info }
		if err := decode(raw, &list); err != nil {
			return err
		}
		if len(list.Servers) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), `roundhouse: no server is exclusive; "sharing": "exclusive" in its entry makes it one`)
			return nil
		}
		t := newTable(cmd.OutOrStdout(), "SERVER", "INSTANCE", "STATE", "FOR", "SESSION", "PRINCIPAL", "AGE", "USES", "LAST ERROR")
		for _, s := range list.Servers {
			if len(s.Instances)+len(s.Waiting) == 0 {
				fmt.Fprintf(t, "%s\t-\tnone of %d\t-\t-\t-\t-\t-\t%s\n", oneLine(s.Server), s.Max, oneLine(s.LastError))
			}
			for _, i := range s.Instances {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", oneLine(s.Server), oneLine(i.ID), i.State, since(i.Since), orDash(i.Session), orDash(i.Principal),
					since(i.CreatedAt), i.Uses, oneLine(s.LastError))
			}
			for _, w := range s.Waiting {
				fmt.Fprintf(t, "%s\t-\twaiting\t%s\t%s\t%s\t-\t-\t\n", oneLine(s.Server), since(w.Since), orDash(w.Session), orDash(w.Principal))
			}
		}
		return t.Flush()
	}
	cmd.AddCommand(instancesReleaseCommand())
	return cmd
}

func since(t time.Time) string { return max(time.Since(t), 0).Round(time.Second).String() }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return oneLine(s)
}

func instancesReleaseCommand() *cobra.Command {
	var asJSON bool
	var principal string
	cmd := &cobra.Command{
		Use:   "release SESSION SERVER",
		Short: "Have a session give an instance back",
		Long: `Release takes the instance of a server away from a session, after the server's
clean-up. Calls in flight there are interrupted; the session's next call gets another
instance.`,
		Example:           "  roundhouse instances release review browser",
		Args:              arguments(2, 2, "two arguments, the session's id and the server's name ('roundhouse instances' lists both)"),
		ValidArgsFunction: completeSessions,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&principal, "principal", "", "the `name` of the principal whose session it is, if several have one of this id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		query := url.Values{}
		if principal != "" {
			query.Set("principal", principal)
		}
		path := "/api/v1/sessions/" + url.PathEscape(args[0]) + "/leases/" + url.PathEscape(args[1]) + "?" + query.Encode()
		if err := a.send(cmd.Context(), http.MethodDelete, path, nil); err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"session": args[0], "server": args[1], "released": true})
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "session %s has given its instance of %s back\n", args[0], args[1])
		return err
	}
	return cmd
}
