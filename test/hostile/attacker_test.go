// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The attacker is a separate process, so that its resources are not counted as the test's. It has the lowest priority,
// so that the results reflect the node's cost.

const (
	envAttack = "HOSTILE_ATTACK" // a plan, as JSON
	envLowest = "HOSTILE_LOWEST" // set if the process already has the lowest priority
	// testTimeout is how long an attack waits for the node's reaction.
	testTimeout = 20 * time.Second
	// halfOpen is the number of connections on which nothing is sent.
	halfOpen = 5000
)

// plan configures the attacker.
type plan struct {
	// Attack is the name of an attack. If empty, half-open connections are held.
	Attack  string
	Address string
	// From is the source address of connections; any if empty. With AllPorts, each connection has a different source
	// address in 127.0.0.0/8.
	From     string
	AllPorts bool
	// For is the duration. It is extended until one attempt has ended.
	For time.Duration
	// Files is the maximum number of open connections.
	Files int
	// Queue has messages, and a subscription for each never-reading consumer.
	Queue         string
	Subscriptions []string
}

// tally is the result of one attack.
type tally struct {
	// Fired is the number of attempts. Ends counts the attempts by how they ended.
	Fired int
	Ends  map[string]int
}

// attacker executes a plan.
type attacker struct {
	plan plan

	mu    sync.Mutex // guards tallies
	tally map[string]*tally
}

// attack is a kind of attack. Each of its workers calls the function in the field once in a loop, until ctx is done.
type attack struct {
	name    string
	workers int
	once    func(ctx context.Context, a *attacker, name string, worker int)
}

func attacks() []attack {
	return []attack{
		{"garbage", 4, garbage},
		{"http1", 4, http1},
		{"slow preface", 200, slowPreface},
		{"endless headers", 200, endlessHeaders},
		{"header flood", 4, headerFlood},
		{"many streams", 1, manyStreams},
		{"never-reading consumer", 32, neverReads},
		{"oversized frame", 4, oversizedFrame},
		{"truncated frame", 4, truncatedFrame},
		{"oversized message", 4, oversizedMessage},
		{"invalid token", 4, wrongToken},
		{"rapid reset", 2, rapidReset},
		{"ping flood", 2, pingFlood},
		{"settings flood", 2, settingsFlood},
		{"empty frames", 2, emptyFrames},
		{"many addresses", 4, truncatedFrame},
		{"never-reading publishers", 2, nonReadingPublishers},
	}
}

// runAttacker is the main function of the attacker process.
func runAttacker(text string) error {
	a := &attacker{tally: map[string]*tally{}}
	if err := json.Unmarshal([]byte(text), &a.plan); err != nil {
		return err
	}
	if err := lowestPriority(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		pause(ctx, a.plan.For)
		for i := 0; a.idle() && i < 1000; i++ { // an attempt may be slow at this priority
			pause(ctx, testTimeout/1000)
		}
		cancel()
	}()
	var workers sync.WaitGroup
	if a.plan.Attack == "" {
		workers.Go(func() { a.holdHalfOpen(ctx) })
	}
	for _, one := range slices.Concat(attacks(), memoryAttacks(), amqpAttacks()) {
		for w := range one.workers {
			if one.name != a.plan.Attack {
				break
			}
			workers.Go(func() {
				for ctx.Err() == nil {
					one.once(ctx, a, one.name, w)
				}
			})
		}
	}
	workers.Wait()
	return json.NewEncoder(os.Stdout).Encode(a.tally)
}

// lowestPriority re-executes the process with the lowest priority. On Linux, each thread has a separate priority,
// which it inherits from its creator, so a running Go program cannot change the priority of all its threads.
func lowestPriority() error {
	if os.Getenv(envLowest) != "" {
		return nil
	}
	runtime.LockOSThread()
	if err := yieldProcessor(); err != nil {
		return err
	}
	return syscall.Exec(os.Args[0], os.Args, append(os.Environ(), envLowest+"=1"))
}

// record counts one attempt, by how it ended.
func (a *attacker) record(name, end string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tally[name]
	if t == nil {
		t = &tally{Ends: map[string]int{}}
		a.tally[name] = t
	}
	t.Fired++
	t.Ends[end]++
}

// idle reports whether no attempt has ended yet.
func (a *attacker) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.tally) == 0
}

// dial returns a connection that is closed when ctx is done, or nil if dialing fails.
func (a *attacker) dial(ctx context.Context, name string) net.Conn {
	d := net.Dialer{}
	if a.plan.AllPorts {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, byte(1+rand.IntN(250)), byte(rand.IntN(250)), byte(1+rand.IntN(250)))}
	} else if ip := net.ParseIP(a.plan.From); ip != nil {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := d.DialContext(limited, "tcp", a.plan.Address)
	if err != nil {
		if ctx.Err() == nil {
			a.record(name, "not accepted")
			pause(ctx, 10*time.Millisecond)
		}
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	context.AfterFunc(ctx, func() { _ = c.Close() })
	return c
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// end returns a description of how a connection ended.
func end(ctx context.Context, err error) string {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return "held until the attack ended"
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE):
		return "closed"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no reaction"
	default:
		return err.Error()
	}
}

// holdHalfOpen keeps many silent connections open.
func (a *attacker) holdHalfOpen(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for range min(halfOpen, a.plan.Files) {
		all.Go(func() {
			for ctx.Err() == nil {
				c := a.dial(ctx, "half-open")
				if c == nil {
					continue
				}
				_ = c.SetDeadline(time.Time{})
				_, err := c.Read(make([]byte, 1))
				a.record("half-open", end(ctx, err))
				_ = c.Close()
				pause(ctx, time.Duration(rand.IntN(10_000))*time.Millisecond)
			}
		})
		pause(ctx, 200*time.Microsecond)
	}
}

func garbage(ctx context.Context, a *attacker, name string, _ int) {
	c := a.dial(ctx, name)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	b := make([]byte, 1+rand.IntN(1<<16))
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	_, err := c.Write(b)
	if err == nil {
		_, err = io.Copy(io.Discard, c)
	}
	a.record(name, end(ctx, err))
}

func http1(ctx context.Context, a *attacker, name string, _ int) {
	c := a.dial(ctx, name)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, err := fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive\r\n\r\n", a.plan.Address)
	if err == nil {
		_, err = io.Copy(io.Discard, c)
	}
	a.record(name, end(ctx, err))
}

func slowPreface(ctx context.Context, a *attacker, name string, _ int) {
	c := a.dial(ctx, name)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	var err error
	for i := 0; err == nil && i < len(http2.ClientPreface); i++ {
		_, err = c.Write([]byte{http2.ClientPreface[i]})
		pause(ctx, 500*time.Millisecond)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, c)
	}
	a.record(name, end(ctx, err))
}

// h2 is a connection that implements the parts of HTTP/2 that attacks require.
type h2 struct {
	net.Conn
	*http2.Framer

	fields bytes.Buffer
	hpack  *hpack.Encoder
}

// connect dials, and executes the HTTP/2 handshake.
func (a *attacker) connect(ctx context.Context, name string, settings ...http2.Setting) *h2 {
	c := a.dial(ctx, name)
	if c == nil {
		return nil
	}
	h := &h2{Conn: c, Framer: http2.NewFramer(c, c)}
	h.hpack = hpack.NewEncoder(&h.fields)
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(c, http2.ClientPreface)
	if err == nil {
		err = h.WriteSettings(settings...)
	}
	if err == nil {
		err = h.WriteSettingsAck()
	}
	if err != nil {
		a.record(name, end(ctx, err))
		_ = c.Close()
		return nil
	}
	return h
}

// call starts a call of a method, with additional metadata.
func (h *h2) call(stream uint32, method string, more ...hpack.HeaderField) error {
	return h.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: h.block(method, more...), EndHeaders: true,
	})
}

func (h *h2) block(method string, more ...hpack.HeaderField) []byte {
	h.fields.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "node"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		_ = h.hpack.WriteField(f) // writes to memory
	}
	return h.fields.Bytes()
}

// outcome reads until the node ends the connection or, if stream is not 0, the stream. It returns a description of
// the end.
func (h *h2) outcome(ctx context.Context, stream uint32) string {
	last := ""
	for {
		f, err := h.ReadFrame()
		if err != nil {
			if last != "" && ctx.Err() == nil {
				return last
			}
			return end(ctx, err)
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			last = "GOAWAY " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return "RST_STREAM " + f.ErrCode.String()
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if field.Name == "grpc-status" && f.StreamID == stream {
					return "status " + field.Value
				}
			}
			if f.StreamID == stream && f.StreamEnded() {
				return "HTTP status " + f.PseudoValue("status")
			}
		}
	}
}
