package store

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// N6: trouble is told of when it begins, once a minute while it lasts, and when it is over.
func TestTroubleIsToldOfNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		log := func(msg string, _ ...any) { told = append(told, msg) }
		expect := func(want ...string) {
			t.Helper()
			if !slices.Equal(told, want) {
				t.Errorf("told is %q, not %q", told, want)
			}
			told = nil
		}
		var trouble Trouble
		trouble.Over(log, "over")
		expect()
		for range 2 {
			for range 150 { // seconds
				trouble.Note(log, "failed")
				time.Sleep(time.Second)
			}
			expect("failed", "failed", "failed")
			trouble.Over(log, "over")
			trouble.Over(log, "over")
			expect("over")
		}
	})
}
