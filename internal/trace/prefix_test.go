package trace

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// J2, J3: in random forests, the parent is the longest earlier entry that begins the
// prompt, every entry comes back whole, and every chosen answer is trained in exactly
// one row.
func TestRandomForests(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var tr tree[int32]
		var prompts, wholes [][]int32
		tokens := func(n int) (out []int32) {
			for range r.IntN(n) {
				out = append(out, int32(r.IntN(3)))
			}
			return out
		}
		better := func(i, than int) bool { return i > than }
		for range 1 + r.IntN(40) {
			var prompt []int32
			if len(wholes) > 0 && r.IntN(5) > 0 {
				prompt = slices.Clone(wholes[r.IntN(len(wholes))])
				prompt = prompt[:len(prompt)-min(len(prompt), r.IntN(4)*r.IntN(2))]
			}
			prompt = append(prompt, tokens(4)...)
			answer := tokens(4)

			want, most := none, -1
			for i, w := range wholes {
				if len(w) <= len(prompt) && slices.Equal(w, prompt[:len(w)]) && (want == none || len(w) >= len(wholes[want])) {
					want = i
				}
				most = max(most, common(w, prompt))
			}
			p := tr.find(prompt, always, better)
			if p.parent != want {
				t.Fatalf("seed %d: the parent of %v is %d, not %d of %v", seed, prompt, p.parent, want, wholes)
			}
			if len(wholes) > 0 && p.common != most {
				t.Fatalf("seed %d: %v has %d in common with %d of %v, not %d", seed, prompt, p.common, p.near, wholes, most)
			}
			i := tr.add(p.parent, prompt, answer)
			prompts, wholes = append(prompts, prompt), append(wholes, slices.Concat(prompt, answer))
			if !slices.Equal(tr.whole(i), wholes[i]) {
				t.Fatalf("seed %d: entry %d is %v, not %v", seed, i, tr.whole(i), wholes[i])
			}
		}
		chosen := make([]bool, len(wholes))
		for i := range chosen {
			chosen[i] = r.IntN(4) > 0
		}
		trained := make([]int, len(wholes))
		for _, row := range tr.rows(func(i int) bool { return chosen[i] }) {
			at := 0
			whole := wholes[row.path[len(row.path)-1]]
			for n, i := range row.path {
				if !slices.Equal(wholes[i], whole[:len(wholes[i])]) || len(prompts[i]) < at {
					t.Fatalf("seed %d: entry %d does not begin its leaf", seed, i)
				}
				at = len(wholes[i])
				if row.trained[n] {
					trained[i]++
				}
			}
		}
		for i := range wholes {
			if want := map[bool]int{true: 1}[chosen[i]]; trained[i] != want {
				t.Fatalf("seed %d: entry %d is trained in %d rows, not %d", seed, i, trained[i], want)
			}
		}
	}
}
