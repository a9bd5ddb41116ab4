// Package trace makes trajectories of recorded calls: which turn goes on from which
// (J2), rows to train on (J3), and whether a recording is whole (J4, C3).
//
// Everything here is derived from the log in the store and can be made again (J1);
// nothing is re-tokenised or padded to fit.
//
//	x, err := trace.NewExport(st, trace.Options{Format: trace.Tokens, Session: store.Of(key)})
//	for line, err := range x.Lines(ctx) { // JSON, one row each
//		…
//	}
//	x.Skipped() // turns that a format could not take, by reason
//
//	report, err := trace.Check(ctx, st, key)
//	if report.Hole { … } // exit status 1
//
// # How turns are joined
//
// A turn is a call that ended complete or truncated. Its parent is the longest earlier
// turn whose prompt and answer begin its prompt: token by token where both have token
// ids, else message by message. Messages of the three APIs are brought into one form
// for this, which does not see what clients change without meaning it: cache marks, a
// text alone or in a list, null members, the spelling of JSON arguments.
//
// A turn that does not simply go on from its parent has a Break, which says why.
package trace
