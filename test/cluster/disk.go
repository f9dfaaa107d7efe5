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

	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
)

// ErrNoFaultDisk is returned when a node's disk is to be broken, and Options.Disk was not set.
var ErrNoFaultDisk = errors.New("cluster: the node's disk cannot be broken: Options.Disk is not set")

// SetDisk says what the disk of the running node does from now on. It waits for a node that is starting, and returns
// ErrNotRunning for one that does not run.
func (n *Node) SetDisk(ctx context.Context, s faultdisk.State) error {
	body, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("disk of %s: %w", n.Name, err)
	}
	_, err = n.diskCall(ctx, http.MethodPut, body)
	return err
}

// DiskHits tells how often each rule struck since SetDisk.
func (n *Node) DiskHits(ctx context.Context) (hits []uint64, err error) {
	body, err := n.diskCall(ctx, http.MethodGet, nil)
	if err == nil {
		err = json.Unmarshal(body, &hits)
	}
	return hits, err
}

// StartWithDisk says what the disk does from the first operation on, at each start from now on.
func (n *Node) StartWithDisk(s faultdisk.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diskAtStart = s
}

// LosePower is Kill, and the machine has to boot: with State.Hold, what was not synced is gone, and the next start is
// on another boot.
func (n *Node) LosePower() error {
	if err := n.Kill(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.boots++
	return nil
}

// diskEnvironment is what tells the node about its disk.
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

// diskCall makes one request, again and again while the node is starting.
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
	req.Close = true // each start listens anew
	c := http.Client{Timeout: 10 * time.Second}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("disk: %s: %s", resp.Status, strings.TrimSpace(string(out)))
	}
	return out, err
}
