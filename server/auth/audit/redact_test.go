// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const secretText = "PLANTED-SECRET"

// suspicious matches names of fields that probably contain secrets or message content.
var suspicious = regexp.MustCompile(`body|bodies|token|password|passwd|secret|credential|propert|payload|private`)

// harmless contains fields that have such a name but contain no secret.
var harmless = map[protoreflect.FullName]bool{}

// requests returns the request types of all methods of the API.
func requests(t *testing.T) (all []protoreflect.MessageDescriptor) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("lockstep.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				all = append(all, s.Methods().Get(j).Input())
			}
		}
		return true
	})
	require.NotEmpty(t, all)
	return all
}

// setAll sets all text fields of a message to secretText if they must be redacted, and to another text otherwise.
// It returns the number of fields that it has set to secretText. If redacted is set, all fields must be redacted.
func setAll(m protoreflect.Message, redacted bool, depth int) (secrets int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := m.Descriptor().FullName()
		hide := redacted || name == "lockstep.v1.Message" || name == "lockstep.v1.StoredMessage" ||
			f.Kind() == protoreflect.BytesKind || f.IsMap() ||
			suspicious.MatchString(string(f.Name())) && !harmless[f.FullName()]
		text := "public"
		if hide {
			text = secretText
		}
		one := func() (protoreflect.Value, bool) {
			switch f.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(text), true
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes([]byte(text)), true
			case protoreflect.MessageKind:
				if depth > 6 || strings.HasPrefix(string(f.Message().FullName()), "google.") {
					return protoreflect.Value{}, false
				}
				sub := dynamicpb.NewMessage(f.Message())
				secrets += setAll(sub, hide, depth+1)
				return protoreflect.ValueOfMessage(sub), true
			default:
				return protoreflect.Value{}, false
			}
		}
		switch {
		case f.IsMap():
			v := m.NewField(f).Map()
			value := protoreflect.ValueOfString(secretText)
			if k := f.MapValue().Kind(); k == protoreflect.MessageKind {
				sub := dynamicpb.NewMessage(f.MapValue().Message())
				secrets += setAll(sub, true, depth+1)
				value = protoreflect.ValueOfMessage(sub)
			} else if k != protoreflect.StringKind {
				continue
			}
			if f.MapKey().Kind() == protoreflect.StringKind {
				v.Set(protoreflect.ValueOfString(secretText).MapKey(), value)
				m.Set(f, protoreflect.ValueOfMap(v))
				secrets++
			}
		case f.IsList():
			if v, ok := one(); ok {
				l := m.NewField(f).List()
				l.Append(v)
				m.Set(f, protoreflect.ValueOfList(l))
			}
		default:
			if v, ok := one(); ok {
				m.Set(f, v)
			}
		}
		if hide {
			secrets++
		}
	}
	return secrets
}

// The record of a request of any method contains none of its bytes, maps, message bodies, tokens or passwords.
func TestRequestsAreRedacted(t *testing.T) {
	total := 0
	for _, d := range requests(t) {
		m := dynamicpb.NewMessage(d)
		total += setAll(m, false, 0)
		var r Record
		r.setRequest(proto.Message(m))
		require.NotContains(t, string(r.Arguments), secretText, "%s", d.FullName())
		require.NotContains(t, r.Object, secretText, "%s", d.FullName())
	}
	require.Greater(t, total, 20)
}

// The arguments in a record are those of the request, except that long texts are shortened and bodies are
// redacted.
func TestArguments(t *testing.T) {
	body := make([]byte, 8<<20)
	for _, c := range []struct {
		request           proto.Message
		arguments, object string
	}{
		{&pb.SwitchoverRequest{}, "", ""},
		{
			&pb.CreateQueueRequest{Name: "orders", Subscriptions: []string{"a", "b"}},
			`{"name":"orders","subscriptions":["a","b"]}`, "orders",
		},
		{
			&pb.PublishRequest{Queue: "orders", Messages: []*pb.Message{{Body: body}, {Body: body}}},
			`{"messages":"[2 withheld]","queue":"orders"}`, "orders",
		},
		{
			&pb.CreateSubscriptionRequest{Queue: "orders", Name: "eu"}, `{"name":"eu","queue":"orders"}`, "orders/eu",
		},
		{
			&pb.SetPausedRequest{Paused: true, Reason: strings.Repeat("é", 1000)},
			`{"paused":true,"reason":"` + strings.Repeat("é", 128) + `… (2000 bytes)"}`, "",
		},
	} {
		var r Record
		r.setRequest(c.request)
		require.Equal(t, c.arguments, string(r.Arguments))
		require.Equal(t, c.object, r.Object)
	}
}
