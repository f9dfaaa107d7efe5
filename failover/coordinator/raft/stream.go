// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

// All traffic between voters uses one port. A connection begins with a hello and a response, inside TLS if enabled:
//
//	dialer:   magic "LKS1" │ kind 1 │ length 2 │ JSON of handshake
//	listener: 0 │ length 2 = 0        or   1 │ length 2 │ reason of the rejection
//
// The field `to` of a handshake is the ID of the intended voter, because raft identifies voters only by address.
// Without this check, a voter with a wiped disk could vote a second time in the same term, without the entries that
// it had acknowledged before.
const (
	magic        = "LKS1"
	kindRaft     = 'r'
	kindAPI      = 'a'
	maxHello     = 1 << 10
	maxHandshake = 64 // limit of concurrent handshakes

	// handshakeTimeout limits TLS and the hello. It is longer than the timeout of a request.
	handshakeTimeout = 10 * time.Second
)

const (
	textUsesTLS  = "TLS connection to a voter without TLS"
	textNotVoter = "unexpected response"
)

var errRefused = errors.New("connection rejected by the voter")

type handshake struct {
	From string `json:"from"`
	To   string `json:"to,omitempty"` // empty: any voter at that address
	// Have is the disk state of the connecting voter, and Seen the progress that it knows of the accepting voter. They
	// are only used on raft connections, and not by voters of 0.1.0.
	Have *diskState    `json:"have,omitempty"`
	Seen *peerProgress `json:"seen,omitempty"`
}

type dialer struct {
	from string
	// describe sets Have and Seen. It is nil if no raft connections are opened.
	describe func(*handshake) error
	tls      *TLS          // may be nil
	timeout  time.Duration // of dial
	dial     func(ctx context.Context, address string) (net.Conn, error)
}

// connect dials, starts TLS, sends the hello, and waits until the other side has accepted.
func (d *dialer) connect(ctx context.Context, kind byte, to, address string) (_ net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := d.open(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("connect to voter at %s: %w", address, err)
	}
	// The function runs in another goroutine, and must not use conn, which changes below.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = raw.Close()
		}
	}()
	conn := raw
	if d.tls != nil {
		secure := tls.Client(raw, d.tls.client(address))
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, describeDialError(address, err)
		}
		conn = secure
	}
	g := handshake{From: d.from, To: to}
	if kind == kindRaft {
		if err := d.describe(&g); err != nil {
			return nil, err
		}
	}
	if err := sendHandshake(conn, kind, g); err != nil {
		return nil, describeDialError(address, err)
	}
	return conn, nil
}

func (d *dialer) open(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	return d.dial(ctx, address)
}

func describeDialError(address string, err error) error {
	if what := cause(err); what != "" {
		return fmt.Errorf("connect to voter at %s: %s: %w", address, what, err)
	}
	return fmt.Errorf("connect to voter at %s: %w", address, err)
}

func sendHandshake(conn net.Conn, kind byte, g handshake) error {
	body, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	hello := append([]byte(magic), kind)
	hello = binary.BigEndian.AppendUint16(hello, uint16(len(body)))
	if _, err := conn.Write(append(hello, body...)); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	var head [3]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	n := binary.BigEndian.Uint16(head[1:])
	if head[0] > 1 || n > maxHello {
		return fmt.Errorf("hello: %s", textNotVoter)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(conn, text); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if head[0] == 1 {
		return fmt.Errorf("%w: %s", errRefused, text)
	}
	return nil
}

type port struct {
	ln        net.Listener
	tls       *TLS            // may be nil
	addresses func() []string // of the voters
	admit     func(kind byte, g handshake) error
	log       *zap.Logger
	raft, api *inbox
	slots     chan struct{}
	wg        sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	conns    map[net.Conn]struct{}
	closed   bool
	loggedAt time.Time // time of the last logged rejection
}

// newPort creates a port, which owns the listener and accepts its connections. voters returns the addresses of all
// known voters. admit may reject a connection.
func newPort(
	ln net.Listener, secure *TLS, voters func() []string, advertise string,
	admit func(byte, handshake) error, log *zap.Logger,
) *port {
	addr := address(advertise)
	p := &port{
		ln: ln, tls: secure, addresses: voters, admit: admit, log: log,
		raft: newInbox(addr), api: newInbox(addr),
		slots: make(chan struct{}, maxHandshake), conns: make(map[net.Conn]struct{}),
	}
	p.wg.Go(p.accept)
	return p
}

func (p *port) accept() {
	for {
		p.slots <- struct{}{}
		conn, err := p.ln.Accept()
		if err != nil {
			<-p.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// probably no free file descriptors
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // no event signals free descriptors
			continue
		}
		tracked := p.track(conn)
		p.wg.Go(func() {
			defer func() { <-p.slots }()
			if err := p.receive(tracked); err != nil {
				_ = tracked.Close()
				p.refused(conn.RemoteAddr(), err)
			}
		})
	}
}

func (p *port) receive(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if p.tls != nil {
		conn = tls.Server(conn, p.tls.Receive())
	}
	var head [len(magic) + 3]byte
	if _, err := io.ReadFull(conn, head[:1]); err != nil {
		return fmt.Errorf("read hello: %w", err)
	}
	if p.tls == nil && head[0] == 0x16 { // first byte of a TLS connection
		return answer(conn, errors.New(textUsesTLS))
	}
	if _, err := io.ReadFull(conn, head[1:]); err != nil {
		return fmt.Errorf("read hello: %w", err)
	}
	n := binary.BigEndian.Uint16(head[len(magic)+1:])
	if string(head[:len(magic)]) != magic || n > maxHello {
		return errors.New("hello: not a voter")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(conn, body); err != nil {
		return fmt.Errorf("read hello: %w", err)
	}
	var g handshake
	if err := json.Unmarshal(body, &g); err != nil {
		return fmt.Errorf("decode hello: %w", err)
	}
	kind := head[len(magic)]
	box := map[byte]*inbox{kindRaft: p.raft, kindAPI: p.api}[kind]
	if box == nil {
		return answer(conn, fmt.Errorf("unknown connection kind %q", kind))
	}
	if err := p.checkCertificate(conn); err != nil {
		return answer(conn, err)
	}
	if err := p.admit(kind, g); err != nil {
		return answer(conn, err)
	}
	if err := answer(conn, nil); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	return box.put(conn)
}

// checkCertificate rejects a TLS connection if its certificate does not belong to a voter.
func (p *port) checkCertificate(conn net.Conn) error {
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	certificates := secure.ConnectionState().PeerCertificates
	if len(certificates) == 0 {
		return errNonPeer
	}
	return p.tls.accept(certificates[0], p.addresses())
}

// answer sends the response to a hello. It returns refusal, or a write error.
func answer(conn net.Conn, refusal error) error {
	out := []byte{0, 0, 0}
	if refusal != nil {
		text := refusal.Error()
		text = text[:min(len(text), maxHello)]
		out = append([]byte{1}, binary.BigEndian.AppendUint16(nil, uint16(len(text)))...)
		out = append(out, text...)
	}
	if _, err := conn.Write(out); err != nil && refusal == nil {
		return fmt.Errorf("hello response: %w", err)
	}
	return refusal
}

func (p *port) refused(from net.Addr, err error) {
	p.mu.Lock()
	due := !p.closed && time.Since(p.loggedAt) > logInterval && !errors.Is(err, io.EOF) && !errors.Is(err, errVerifying)
	if due {
		p.loggedAt = time.Now()
	}
	p.mu.Unlock()
	if due {
		p.log.Warn("connection to the voter rejected; logged at most once a minute",
			zap.Stringer("from", from),
			zap.String("cause", cause(err)), zap.Error(err))
	}
}

// track registers a connection for Close, and returns the registered connection.
func (p *port) track(conn net.Conn) net.Conn {
	t := &trackedConn{Conn: conn, p: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return t
	}
	p.conns[t] = struct{}{}
	return t
}

func (p *port) drop() {
	p.mu.Lock()
	conns := p.conns
	p.conns = make(map[net.Conn]struct{})
	p.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

func (p *port) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.ln.Close()
	_ = p.raft.Close()
	_ = p.api.Close()
	p.drop()
	p.wg.Wait()
}

type trackedConn struct {
	net.Conn

	p *port
}

func (t *trackedConn) Close() error {
	t.p.mu.Lock()
	delete(t.p.conns, t)
	t.p.mu.Unlock()
	return t.Conn.Close()
}

type address string

func (a address) Network() string { return "tcp" }

func (a address) String() string { return string(a) }

// inbox is a net.Listener for connections after the handshake.
type inbox struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newInbox(addr net.Addr) *inbox {
	return &inbox{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (i *inbox) put(conn net.Conn) error {
	select {
	case i.conns <- conn:
		return nil
	case <-i.done:
		return net.ErrClosed
	}
}

func (i *inbox) Accept() (net.Conn, error) {
	select {
	case c := <-i.conns:
		return c, nil
	case <-i.done:
		return nil, net.ErrClosed
	}
}

func (i *inbox) Close() error {
	i.once.Do(func() { close(i.done) })
	return nil
}

func (i *inbox) Addr() net.Addr { return i.addr }
