package main

import "testing"

func TestHalfOfTheProcessorsAreLeftToOthers(t *testing.T) {
	for _, c := range []struct {
		available int
		records   bool
		want      int
	}{
		{1, false, 1}, {2, false, 1}, {3, false, 1}, {4, false, 2}, {10, false, 5},
		{1, true, 1}, {2, true, 2}, {3, true, 2}, {4, true, 2}, {10, true, 5},
	} {
		if got := processors(c.available, c.records); got != c.want {
			t.Errorf("of %d processors, recording %t, it runs on %d, want %d", c.available, c.records, got, c.want)
		}
	}
}
