package front

import (
	"errors"
	"net/http"

	"roundhouse/internal/config"
)

// RecordPolicy reads what a request says of the recording of its model calls (C3); "" is
// nothing. The error is for the caller, in whose API's form each face tells it.
func RecordPolicy(r *http.Request) (config.RecordPolicy, error) {
	values := r.Header["X-Roundhouse-Record"]
	if len(values) == 0 {
		return "", nil
	}
	switch p := config.RecordPolicy(values[0]); {
	case len(values) > 1:
	case p == config.RecordTrain, p == config.RecordObserve, p == config.RecordOff:
		return p, nil
	}
	return "", errRecordPolicy
}

var errRecordPolicy = errors.New("the header X-Roundhouse-Record must be one of train, observe, off")
