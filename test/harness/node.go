// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// Placement contains the address, the command prefix and the environment variables of a process.
type Placement struct {
	// Address is the listen address of the node, a host:port. If empty, the node listens on a free port of 127.0.0.1,
	// which is reserved for it.
	Address string
	// Command is a prefix of the command line.
	Command []string
	// Environment is called at each start, and returns additional environment variables.
	Environment func() ([]string, error)
}

// Node is a node or the witness: a process that can be stopped and restarted with the same data.
type Node struct {
	// Name is the name in the node's configuration.
	Name string
	// Address is the listen address, a host:port.
	Address string
	// Dir is the directory of the node's data, its log and, if any, its configuration file.
	Dir string

	process
	port     *Port // reserved port; nil if the address was given
	conn     *grpc.ClientConn
	link     *faultproxy.Relay // for connections from the other node; nil without Options.Links
	etcdLink *faultproxy.Relay // for connections to etcd; nil without Options.EtcdLinks
	released bool              // release was called
}

func newNode(name, dir, binary string, at Placement, secure credentials.TransportCredentials) (_ *Node, err error) {
	n := &Node{Name: name, Address: at.Address, Dir: dir}
	n.process = process{
		name: "node " + name, log: filepath.Join(dir, "node.log"),
		command: slices.Concat(at.Command, []string{binary}), environment: at.Environment,
	}
	if n.Address == "" {
		if n.port, err = ReservePort(); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		n.Address = n.port.Address()
	}
	if secure == nil {
		secure = insecure.NewCredentials()
	}
	n.conn, err = grpc.NewClient("passthrough:///"+n.Address,
		grpc.WithTransportCredentials(secure),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 5 * time.Millisecond, Multiplier: 1.5,
				MaxDelay: 50 * time.Millisecond,
			},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", name, err), n.release())
	}
	return n, nil
}

// DataDir returns the path of the node's data directory.
func (n *Node) DataDir() string { return filepath.Join(n.Dir, "data") }

// ConfigFile returns the path of the node's configuration file, which exists with Options.ConfigFiles.
func (n *Node) ConfigFile() string { return filepath.Join(n.Dir, "node.yaml") }

// Conn returns a connection to this node, regardless of its role.
func (n *Node) Conn() *grpc.ClientConn { return n.conn }

// Status requests the node's status, without retries.
func (n *Node) Status(ctx context.Context) (*pb.GetStatusResponse, error) {
	s, err := pb.NewAdminServiceClient(n.conn).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("status of node %s: %w", n.Name, err)
	}
	return s, nil
}

func (n *Node) release() error {
	if n.released {
		return nil
	}
	n.released = true
	var errs []error
	if n.conn != nil {
		errs = append(errs, n.conn.Close())
	}
	if n.port != nil {
		errs = append(errs, n.port.Close())
	}
	for _, l := range []*faultproxy.Relay{n.link, n.etcdLink} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}
