// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	anonymous   wire.Symbol = "ANONYMOUS"
	plain       wire.Symbol = "PLAIN"
	external    wire.Symbol = "EXTERNAL"
	oauthBearer wire.Symbol = "OAUTHBEARER"
	xoauth2     wire.Symbol = "XOAUTH2"
)

// signInTimeout limits the authentication of a client, including requests for the keys of an issuer.
const signInTimeout = 15 * time.Second

// errEnded ends a connection without a log entry.
var errEnded = errors.New("connection closed")

// handshake reads the protocol headers, and executes the SASL exchange if requested. Without SASL, a client is
// anonymous or authenticated by its certificate.
func (c *conn) handshake() error {
	id, version, err := c.reader.ProtocolHeader()
	if err != nil {
		return fmt.Errorf("protocol header: %w", err)
	}
	if version != [3]byte{1, 0, 0} || id != wire.ProtocolAMQP && id != wire.ProtocolSASL {
		return errors.Join(errEnded, c.writeRaw(wire.AppendProtocolHeader(nil, wire.ProtocolSASL)))
	}
	if err := c.writeRaw(wire.AppendProtocolHeader(nil, id)); err != nil {
		return err
	}
	if id == wire.ProtocolAMQP {
		return c.signIn("")
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	id, version, err = c.reader.ProtocolHeader()
	if err != nil {
		return fmt.Errorf("protocol header: %w", err)
	}
	if err := c.writeRaw(wire.AppendProtocolHeader(nil, wire.ProtocolAMQP)); err != nil {
		return err
	}
	if version != [3]byte{1, 0, 0} || id != wire.ProtocolAMQP {
		return errEnded
	}
	return nil
}

func (c *conn) writeRaw(b []byte) error {
	if err := c.raw.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if _, err := c.raw.Write(b); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// authenticate executes the SASL exchange (5.3).
func (c *conn) authenticate() error {
	offered := []wire.Symbol{plain, oauthBearer, xoauth2, anonymous}
	if c.secured != nil && len(c.secured.VerifiedChains) > 0 {
		offered = append([]wire.Symbol{external}, offered...)
	}
	if err := c.writeRaw(wire.AppendSASLFrame(nil, &wire.SASLMechanisms{Mechanisms: offered})); err != nil {
		return err
	}
	var f wire.Frame
	if err := c.reader.Next(&f); err != nil {
		return fmt.Errorf("sasl-init: %w", err)
	}
	init, ok := f.Body.(*wire.SASLInit)
	if !ok || !f.SASL {
		return fmt.Errorf("%w: expected sasl-init", errEnded)
	}
	mechanism, response := init.Mechanism, bytes.Clone(init.InitialResponse)
	if response == nil && mechanism != anonymous && mechanism != external {
		if err := c.writeRaw(wire.AppendSASLFrame(nil, &wire.SASLChallenge{})); err != nil {
			return err
		}
		if err := c.reader.Next(&f); err != nil {
			return fmt.Errorf("sasl-response: %w", err)
		}
		answer, ok := f.Body.(*wire.SASLResponse)
		if !ok || !f.SASL {
			return fmt.Errorf("%w: expected sasl-response", errEnded)
		}
		response = bytes.Clone(answer.Response)
	}
	token, ok := credential(mechanism, response)
	ok = ok && slices.Contains(offered, mechanism) // EXTERNAL requires a client certificate
	err := errors.New("unsupported SASL mechanism or malformed response")
	if ok {
		err = c.signIn(token)
	}
	outcome := &wire.SASLOutcome{Code: wire.SASLOK}
	switch {
	case err == nil:
	case ok && status.Code(err) != codes.Unauthenticated:
		outcome.Code = wire.SASLSysTemp
	default:
		outcome.Code = wire.SASLAuth
	}
	return errors.Join(err, c.writeRaw(wire.AppendSASLFrame(nil, outcome)))
}

// credential returns the token of a SASL response; "" without a token. ok is false for an invalid response.
func credential(mechanism wire.Symbol, response []byte) (token string, ok bool) {
	switch mechanism {
	case anonymous, external:
		return "", true
	case plain: // RFC 4616: authorization identity, user, password
		parts := strings.Split(string(response), "\x00")
		if len(parts) != 3 {
			return "", false
		}
		return parts[2], true // the token identifies its principal; without a password the client is anonymous
	case oauthBearer, xoauth2: // RFC 7628: key=value pairs between ^A
		for _, pair := range strings.Split(string(response), "\x01") {
			if value, found := strings.CutPrefix(pair, "auth="); found {
				kind, token, _ := strings.Cut(value, " ")
				return strings.TrimSpace(token), strings.EqualFold(kind, "Bearer") && token != ""
			}
		}
	default:
		return "", false
	}
	return "", false
}

// signIn authenticates the client, and stores the credentials for its calls. If the node then refuses a request of the
// client, signIn sets c.refused.
func (c *conn) signIn(token string) error {
	if token != "" {
		inner := c.as
		c.as = func(ctx context.Context) context.Context {
			return metadata.AppendToOutgoingContext(inner(ctx), "authorization", "Bearer "+token)
		}
	}
	ctx, cancel := context.WithTimeout(c.as(c.ctx), signInTimeout)
	defer cancel()
	if _, err := pb.NewAccessServiceClient(c.server.o.Services).WhoAmI(ctx, &pb.WhoAmIRequest{}); err != nil {
		return fmt.Errorf("authenticate: %w", err)
	}
	c.calls = c.as(c.ctx)
	// The first call that requires authentication marks the connection as authenticated.
	if _, err := pb.NewAdminServiceClient(c.server.o.Services).GetStatus(ctx, &pb.GetStatusRequest{}); err != nil {
		c.refused = refusal(err)
	}
	return nil
}
