package process

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// executable finds path itself if it has an extension, or path with one of the
// extensions of PATHEXT.
func executable(path string, env []string) (string, error) {
	exts := lookupEnv(env, "PATHEXT")
	if exts == "" {
		exts = ".COM;.EXE;.BAT;.CMD"
	}
	candidates := []string{}
	if filepath.Ext(path) != "" {
		candidates = append(candidates, path)
	}
	for ext := range strings.SplitSeq(exts, ";") {
		candidates = append(candidates, path+strings.ToLower(ext))
	}
	for _, c := range candidates {
		if info, err := os.Stat(c); err == nil && !info.IsDir() {
			return c, nil
		}
	}
	return "", &fs.PathError{Op: "find", Path: path, Err: fs.ErrNotExist}
}
