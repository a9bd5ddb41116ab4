package wire

// MaxSessionID is the length of the longest session id, in bytes.
const MaxSessionID = 128

// ValidSessionID reports whether s can be a session's id: 1 to 128 of
// A-Z a-z 0-9 . _ : -
func ValidSessionID(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return 1 <= len(s) && len(s) <= MaxSessionID
}
