// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Outcomes of a call.
const (
	Done    = "done"
	Refused = "refused" // authentication failed, or access was denied
	Failed  = "failed"
)

// Record describes a call. It is written to the file as a JSON line.
type Record struct {
	Time       time.Time       `json:"time"`
	Node       string          `json:"node"`
	Principal  string          `json:"principal"`
	Groups     []string        `json:"groups,omitempty"`
	Shown      string          `json:"authentication"`
	Address    string          `json:"address"`
	Method     string          `json:"method"`
	Object     string          `json:"object,omitempty"`
	Arguments  json.RawMessage `json:"arguments,omitempty"`
	Outcome    string          `json:"outcome"`
	Code       string          `json:"code,omitempty"`
	Error      string          `json:"error,omitempty"`
	LSN        uint64          `json:"lsn"`
	DurationMS float64         `json:"took_ms"`
	// Repeated is the number of denied calls of the same kind that were only counted since the last record of that
	// kind.
	Repeated uint64 `json:"repeated,omitempty"`
}

func (r *Record) setRequest(request any) {
	m, ok := request.(proto.Message)
	if !ok || m == nil || !m.ProtoReflect().IsValid() {
		return
	}
	r.Object = objectOf(m.ProtoReflect())
	if text := arguments(m); text != "" {
		r.Arguments = json.RawMessage(text)
	}
}

func (r *Record) setOutcome(err error) {
	if err == nil {
		r.Outcome = Done
		return
	}
	st := status.Convert(err)
	r.Outcome, r.Code, r.Error = Failed, codeName(st.Code()), shortened(st.Message())
	if st.Code() == codes.PermissionDenied || st.Code() == codes.Unauthenticated {
		r.Outcome = Refused
	}
}

// codeName returns the name of a code in upper case, with underscores, such as PERMISSION_DENIED.
func codeName(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' && c != codes.OK {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// objectFields contains the fields that identify the object of a request, in order of precedence. A subscription
// is identified together with its queue.
var objectFields = []protoreflect.Name{ //nolint:gochecknoglobals // a table
	"queue", "name", "xid", "job", "node", "to", "id", "key",
}

func objectOf(m protoreflect.Message) string {
	text := func(name protoreflect.Name) string {
		f := m.Descriptor().Fields().ByName(name)
		switch {
		case f == nil || f.IsList() || Redacted(f) || !m.Has(f):
			return ""
		case f.Kind() == protoreflect.StringKind:
			return shortened(m.Get(f).String())
		case f.Kind() == protoreflect.MessageKind:
			if sub := m.Get(f).Message(); sub.Descriptor().Fields().ByName("name") != nil {
				return objectOf(sub)
			}
		}
		return ""
	}
	for _, name := range objectFields {
		found := text(name)
		if found == "" {
			continue
		}
		if sub := text("subscription"); sub != "" {
			return found + "/" + sub
		}
		if more := text("name"); name == "queue" && more != "" {
			return found + "/" + more
		}
		return found
	}
	return ""
}
