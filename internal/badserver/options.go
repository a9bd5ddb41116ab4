package badserver

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// options are the parsed switches; doc.go says what each does.
type options struct {
	banner, jsonLog, blank, ansi, noiseBetween bool
	bannerNoNewline, bom, cr, noFinalNewline   bool
	stderrFlood                                int

	startDelay                                time.Duration
	neverStart, failStart                     bool
	earlyNotification, earlyPing, shapeByCaps bool
	version                                   string
	noCap                                     []string
	exitAfter, linger                         time.Duration
	crashOn, crashTimesFile, grandchild       string
	diary, diaryAs                            string
	exitFast, ignoreEOF, ignoreTerm           bool
	slowRead, noRead                          bool
	tools, pageSize, pages                    int
	oddNames, loopCursor                      bool
	failList                                  []string
	failListTimes, failListAfter              int
	resultBeforeID, batch, dupID, unknownID   bool
	floatID, errorNullID                      bool
}

// defaultPageSize is the page size when only -pages is given.
const defaultPageSize = 10

// newFlags returns the switches and the options that parsing them fills. Their
// descriptions are in doc.go, which -help prints.
func newFlags() (*flag.FlagSet, *options) {
	o := &options{}
	fs := flag.NewFlagSet("badserver", flag.ContinueOnError)

	fs.BoolVar(&o.banner, "banner", false, "")
	fs.BoolVar(&o.jsonLog, "json-log", false, "")
	fs.BoolVar(&o.blank, "blank", false, "")
	fs.BoolVar(&o.ansi, "ansi", false, "")
	fs.BoolVar(&o.noiseBetween, "noise-between", false, "")
	fs.BoolVar(&o.bannerNoNewline, "banner-no-newline", false, "")
	fs.BoolVar(&o.bom, "bom", false, "")
	fs.BoolVar(&o.cr, "cr", false, "")
	fs.BoolVar(&o.noFinalNewline, "no-final-newline", false, "")
	fs.IntVar(&o.stderrFlood, "stderr-flood", 0, "")

	fs.DurationVar(&o.startDelay, "start-delay", 0, "")
	fs.BoolVar(&o.neverStart, "never-start", false, "")
	fs.BoolVar(&o.failStart, "fail-start", false, "")
	fs.BoolVar(&o.earlyNotification, "early-notification", false, "")
	fs.BoolVar(&o.earlyPing, "early-ping", false, "")
	fs.StringVar(&o.version, "version", "", "")
	fs.Func("no-cap", "",
		choices(&o.noCap, "tools", "prompts", "resources", "logging", "completions"))
	fs.BoolVar(&o.shapeByCaps, "shape-by-caps", false, "")

	fs.DurationVar(&o.exitAfter, "exit-after", 0, "")
	fs.StringVar(&o.crashOn, "crash-on", "", "")
	fs.StringVar(&o.crashTimesFile, "crash-times-file", "", "")
	fs.StringVar(&o.diary, "diary", "", "")
	fs.StringVar(&o.diaryAs, "diary-as", "", "")
	fs.BoolVar(&o.exitFast, "exit-fast", true, "")
	fs.DurationVar(&o.linger, "linger", 0, "")
	fs.BoolVar(&o.ignoreEOF, "ignore-eof", false, "")
	fs.BoolVar(&o.ignoreTerm, "ignore-term", false, "")
	fs.Func("grandchild", "", func(how string) error {
		if !slices.Contains(spawnWays, how) {
			return fmt.Errorf("not one of %s", strings.Join(spawnWays, ", "))
		}
		o.grandchild = how
		return nil
	})

	fs.BoolVar(&o.slowRead, "slow-read", false, "")
	fs.BoolVar(&o.noRead, "no-read", false, "")

	fs.IntVar(&o.tools, "tools", 0, "")
	fs.BoolVar(&o.oddNames, "odd-names", false, "")
	fs.IntVar(&o.pageSize, "page-size", 0, "")
	fs.IntVar(&o.pages, "pages", 0, "")
	fs.BoolVar(&o.loopCursor, "loop-cursor", false, "")
	fs.Func("fail-list", "",
		choices(&o.failList, "tools", "prompts", "resources"))
	fs.IntVar(&o.failListTimes, "fail-list-times", 0, "")
	fs.IntVar(&o.failListAfter, "fail-list-after", 0, "")

	fs.BoolVar(&o.resultBeforeID, "result-before-id", false, "")
	fs.BoolVar(&o.batch, "batch", false, "")
	fs.BoolVar(&o.dupID, "dup-id", false, "")
	fs.BoolVar(&o.unknownID, "unknown-id", false, "")
	fs.BoolVar(&o.floatID, "float-id", false, "")
	fs.BoolVar(&o.errorNullID, "error-null-id", false, "")
	return fs, o
}

// choices parses a comma-separated list of the allowed words into dst.
func choices(dst *[]string, allowed ...string) func(string) error {
	return func(value string) error {
		for word := range strings.SplitSeq(value, ",") {
			if !slices.Contains(allowed, word) {
				return fmt.Errorf("%q is not one of %s", word, strings.Join(allowed, ", "))
			}
			*dst = append(*dst, word)
		}
		return nil
	}
}
