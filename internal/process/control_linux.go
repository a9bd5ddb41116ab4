package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What the daemon and a reaper say to each other over their socket: first the
// daemon sends one launch order, a length and a body; then both speak in lines.
//
//	reaper: started PID START | failed ERRNO    the answer to the order
//	reaper: exited STATUS                       the server has ended; a wait status
//	reaper: ladder STAGE FOUND SIGNALLED ALIVE  the ladder is over
//	reaper: gone                                nothing lives any more; its last word
//	daemon: close                               run the ladder
//	daemon: kill                                go straight to its last step
const (
	sayStarted = "started %d %d\n"
	sayFailed  = "failed %d\n"
	sayExited  = "exited %d\n"
	sayLadder  = "ladder %s %d %d %d\n"
	sayGone    = "gone\n"

	orderClose = "close"
	orderKill  = "kill"
)

// maxLaunch bounds a launch order in bytes; the kernel's own limit for arguments
// and environment is lower.
const maxLaunch = 64 << 20

// encodeLaunch returns the order that runs l, its length first. The strings hold
// no NUL byte, so that separates them.
func encodeLaunch(l launch) []byte {
	number := func(d time.Duration) string { return strconv.FormatInt(int64(d), 10) }
	fields := slices.Concat(
		[]string{number(l.waits.eof), number(l.waits.term), number(l.waits.kill), l.dir, l.path, strconv.Itoa(len(l.argv))},
		l.argv, l.env)
	body := strings.Join(fields, "\x00")
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// readLaunch reads the order that encodeLaunch made; names and the marker are not
// part of it.
func readLaunch(r io.Reader) (launch, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return launch{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxLaunch {
		return launch{}, errors.New("launch order is too long")
	}
	var body strings.Builder
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		return launch{}, err
	}
	fields := strings.Split(body.String(), "\x00")
	const fixed = 6
	if len(fields) < fixed {
		return launch{}, errors.New("launch order is too short")
	}
	var numbers [4]int64
	for i, f := range []string{fields[0], fields[1], fields[2], fields[5]} {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return launch{}, fmt.Errorf("launch order: %w", err)
		}
		numbers[i] = v
	}
	rest, argc := fields[fixed:], numbers[3]
	if argc < 0 || argc > int64(len(rest)) {
		return launch{}, errors.New("launch order has a wrong number of arguments")
	}
	return launch{
		waits: waits{time.Duration(numbers[0]), time.Duration(numbers[1]), time.Duration(numbers[2])},
		dir:   fields[3], path: fields[4], argv: rest[:argc], env: rest[argc:],
	}, nil
}
