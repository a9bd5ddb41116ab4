package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// workspaceVariable stands for the session's workspace until Server.Resolve
// replaces it (K6).
const workspaceVariable = "${WORKSPACE}"

// A scheme says which variables a text may hold.
type scheme struct {
	workspace bool // ${WORKSPACE} and the variables of instances stay, for Server.Resolve and ResolveInstance
	nonEmpty  bool // a variable that is set to nothing counts as not set
	withheld  bool // the environment is not for whoever wrote the text
}

// The schemes in use.
var (
	ordinary  = scheme{}                                // no session is known here
	inServer  = scheme{workspace: true}                 // what a child process gets
	onTheWire = scheme{workspace: true, nonEmpty: true} // an empty bearer must not be sent (case 7)
	inToken   = scheme{nonEmpty: true}                  // an empty one must not be accepted
)

// expanded reads a string and expands its variables. The result may be a secret.
func (r *reader) expanded(n node, s scheme) (string, bool) {
	text, ok := r.text(n)
	if !ok {
		return "", false
	}
	if strings.ContainsRune(text, 0) {
		r.errorAt(n, "holds a NUL character, which nothing can carry")
		return "", false
	}
	s.withheld = r.injecting
	text, err := expand(text, r.env, s)
	if err != nil {
		r.errorAt(n, "%v", err)
		return "", false
	}
	return text, true
}

var (
	variableName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_()]*$`)
	errNotClosed   = errors.New(`a variable is not closed: "${" needs a "}"`)
	errNotVariable = errors.New(`a "${…}" is not understood: write ${VAR}, ${VAR:-default} or ${env:VAR}; a "${" that is meant as it stands is written ${DOLLAR:-$}{`)
)

// expand replaces ${VAR}, ${VAR:-default}, ${env:VAR} and ${env:VAR:-default} by
// the variable's value, and ${userHome} by the home directory. A default is used
// when the variable is not set or empty, and may hold variables itself. $VAR and
// $$ have no meaning. ${WORKSPACE} and ${workspaceFolder} become ${WORKSPACE}, and
// ${INSTANCE_DIR}, ${INSTANCE_INDEX} and ${INSTANCE_PORT} stay as they are.
// Values are not expanded again. Errors name variables, never values.
func expand(text string, env func(string) (string, bool), s scheme) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		body, after, closed := cutVariable(rest)
		if !closed {
			return "", errNotClosed
		}
		value, err := variable(body, env, s)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
		text = after
	}
}

// cutVariable splits text after the "}" that closes the variable at its
// beginning; variables in a default are skipped.
func cutVariable(text string) (body, after string, closed bool) {
	depth := 1
	for i := range len(text) {
		switch {
		case strings.HasPrefix(text[i:], "${"):
			depth++
		case text[i] == '}':
			if depth--; depth == 0 {
				return text[:i], text[i+1:], true
			}
		}
	}
	return "", "", false
}

// variable is the value of what stands between "${" and "}".
func variable(body string, env func(string) (string, bool), s scheme) (string, error) {
	name, fallback, hasDefault := strings.Cut(body, ":-")
	name, explicit := strings.CutPrefix(name, "env:")
	kind, rest, hasKind := strings.Cut(name, ":")
	switch {
	case !explicit && hasKind && kind == "input" && variableName.MatchString(strings.ReplaceAll(rest, "-", "_")):
		return "", fmt.Errorf("${input:%s} asks a person, and a daemon has nobody to ask: write ${%s} and set that environment variable",
			rest, strings.ToUpper(strings.ReplaceAll(rest, "-", "_")))
	case !variableName.MatchString(name):
		return "", errNotVariable
	case explicit:
	case name == "WORKSPACE" || name == "workspaceFolder":
		if !s.workspace {
			return "", fmt.Errorf("${%s} has no meaning here: it is known per session, and only in fields of a server", name)
		}
		if hasDefault {
			return "", fmt.Errorf("${%s} takes no default: every session brings its own", name)
		}
		return workspaceVariable, nil
	case strings.HasPrefix(name, "INSTANCE_"):
		variable := "${" + name + "}"
		switch {
		case !s.workspace:
			return "", fmt.Errorf("%s has no meaning here: it is known per instance, and only in fields of a server", variable)
		case variable != instanceDir && variable != instanceIndex && variable != instancePort:
			return "", fmt.Errorf("%s is no variable of an instance: there are %s, %s and %s", variable, instanceDir, instanceIndex, instancePort)
		case hasDefault:
			return "", fmt.Errorf("%s takes no default: every instance has its own", variable)
		}
		return variable, nil // for Server.ResolveInstance
	case name == "userHome":
		home, ok := homeDir(env)
		if !ok {
			return "", errNoHome
		}
		return home, nil
	}

	if s.withheld {
		return "", errWithheld
	}
	value, set := env(name)
	switch {
	case hasDefault && value == "":
		return expand(fallback, env, s)
	case !set:
		return "", fmt.Errorf("the environment variable %s is not set; set it, or write ${%s:-default}", name, name)
	case s.nonEmpty && value == "":
		return "", fmt.Errorf("the environment variable %s is empty; set it", name)
	}
	return value, nil
}

// errWithheld is about a variable in a server that is injected.
var errWithheld = errors.New("the daemon's environment variables are not for servers that are injected; write the value itself")

var errNoHome = errors.New("the home directory is not known; set HOME")

// homeDir is the user's home directory.
func homeDir(env func(string) (string, bool)) (string, bool) {
	for _, name := range []string{"HOME", "USERPROFILE"} {
		if dir, _ := env(name); filepath.IsAbs(dir) {
			return dir, true
		}
	}
	return "", false
}

// expandHome replaces a leading ~ by the home directory.
func expandHome(path string, env func(string) (string, bool)) (string, error) {
	rest, found := strings.CutPrefix(path, "~")
	if !found || rest != "" && !strings.HasPrefix(rest, "/") && !strings.HasPrefix(rest, string(filepath.Separator)) {
		return path, nil
	}
	home, ok := homeDir(env)
	if !ok {
		return "", errNoHome
	}
	return filepath.Join(home, rest), nil
}
