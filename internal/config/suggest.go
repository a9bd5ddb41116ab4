package config

import "strings"

// closest returns the name that a misspelt key most likely means, or "". A name
// that differs only in case always counts; otherwise at most two edits, and at
// most one in three letters, so that short names of other hosts are left alone.
func closest(key string, names []string) string {
	best, bestDistance := "", 3
	folded := strings.ToLower(key)
	for _, name := range names {
		d := distance(folded, strings.ToLower(name))
		if d < bestDistance && d <= len(name)/3 {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete, replace, or swap with their
// neighbour, to make b of a.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 { // No key of ours is that long.
		return 64
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = min(last[j+1], row[j]) + 1
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], last[j])
			} else {
				row[j+1] = min(row[j+1], last[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
