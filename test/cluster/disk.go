// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// ErrNoFaultDisk is returned by SetDisk and DiskHits without Options.Disk.
var ErrNoFaultDisk = errors.New("cluster: disk faults require Options.Disk")

// SetDisk sets the disk faults of the running node. It waits for a node that is starting, and returns ErrNotRunning if
// the node is not running.
func (n *Node) SetDisk(ctx context.Context, s faultdisk.State) error {
	body, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("disk of %s: %w", n.Name, err)
	}
	_, err = n.diskCall(ctx, http.MethodPut, body)
	return err
}

// DiskHits returns, for each rule, how often it was applied since the last SetDisk.
func (n *Node) DiskHits(ctx context.Context) (hits []uint64, err error) {
	body, err := n.diskCall(ctx, http.MethodGet, nil)
	if err == nil {
		err = json.Unmarshal(body, &hits)
	}
	return hits, err
}

// StartWithDisk sets the disk faults for later starts of the node. They apply from the first disk operation.
func (n *Node) StartWithDisk(s faultdisk.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diskAtStart = s
}

// LosePower simulates a power failure of the node's machine. It kills the node: with State.Hold, unsynced data is
// lost. The next start has another boot ID.
func (n *Node) LosePower() error {
	if err := n.Kill(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.boots++
	return nil
}

func (n *Node) diskEnvironment(name string) ([]string, error) {
	if n.disk == nil {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	state, err := json.Marshal(n.diskAtStart)
	if err != nil {
		return nil, fmt.Errorf("disk of %s: %w", name, err)
	}
	return []string{
		faultdisk.Variable + "=" + n.disk.Address(), faultdisk.VariableState + "=" + string(state),
		fmt.Sprintf("%s=%s-%d", faultdisk.VariableBoot, name, n.boots),
	}, nil
}

// diskCall sends a request, with retries while the node is starting.
func (n *Node) diskCall(ctx context.Context, method string, body []byte) ([]byte, error) {
	if n.disk == nil {
		return nil, ErrNoFaultDisk
	}
	for {
		if !n.Running() || n.Ended() {
			return nil, fmt.Errorf("disk of %s: %w", n.Name, ErrNotRunning)
		}
		out, err := diskRequest(ctx, method, "http://"+n.disk.Address(), body)
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
			return out, err
		}
		if wait(ctx, pollInterval); ctx.Err() != nil {
			return nil, fmt.Errorf("disk of %s: %w", n.Name, err)
		}
	}
}

func diskRequest(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	req.Close = true // each start opens a new listener
	c := http.Client{Timeout: 10 * time.Second}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // already read to the end
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("disk: %s: %s", resp.Status, strings.TrimSpace(string(out)))
	}
	return out, err
}
