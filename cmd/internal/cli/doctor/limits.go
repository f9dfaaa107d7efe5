// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// reservedFiles is the number of open files of a node in addition to connections.
const reservedFiles = 256

func checkMemory(_ context.Context, in *inspector) []Finding {
	machine, group := memoryLimits()
	return memoryFinding(uint64(in.cfg.Memory.Budget.Bytes()), machine, group)
}

// memoryFinding compares the memory budget with the memory of the machine and of the control group, in bytes; 0 means
// unknown.
func memoryFinding(budget, machine, group uint64) []Finding {
	limit, of := machine, "the machine"
	if group > 0 && (machine == 0 || group < machine) {
		limit, of = group, "the control group"
	}
	if limit == 0 {
		return notChecked("the amount of memory is unknown on this system")
	}
	measured := fmt.Sprintf("memory.budget %s, %s has %s", output.Bytes(budget), of, output.Bytes(limit))
	switch {
	case budget > limit:
		return one(Problem, measured, "the system kills the node when it uses its whole budget",
			"lower memory.budget to about two thirds of that, or add memory")
	case budget > limit/10*8:
		return one(Warning, measured, "little memory is left for the page cache and the node's other memory: "+
			"the system may kill it", "lower memory.budget to about two thirds of that, or add memory")
	}
	return one(OK, measured, "", "")
}

func checkOpenFiles(_ context.Context, in *inspector) []Finding {
	limit, err := openFiles()
	if err != nil {
		return notChecked("%v", err)
	}
	wanted := uint64(in.cfg.Limits.Connections) + reservedFiles
	measured := fmt.Sprintf("%s, limits.connections %s", output.Count(limit), output.Count(in.cfg.Limits.Connections))
	if limit < wanted {
		return one(Warning, measured, "the node accepts fewer connections than limits.connections",
			fmt.Sprintf("raise it to at least %d (LimitNOFILE in a systemd unit, ulimit -n), or lower limits.connections",
				wanted))
	}
	return one(OK, measured, "", "")
}

func checkPorts(ctx context.Context, in *inspector) []Finding {
	var all []Finding
	for _, key := range []string{"listen", "metrics.listen", "coordinator.raft.listen", "console.listen", "amqp.listen"} {
		address := in.cfg.Text(key)
		if address == "" || key == "coordinator.raft.listen" && in.cfg.Coordinator.Type != "raft" {
			continue
		}
		f := in.port(ctx, address)
		f.Subject = key
		all = append(all, f)
	}
	return all
}

// port checks whether the node can listen on an address. It briefly binds the address.
func (in *inspector) port(ctx context.Context, address string) Finding {
	host, text, err := net.SplitHostPort(address)
	port, errPort := strconv.Atoi(text)
	if err != nil || errPort != nil {
		return Finding{Verdict: Problem, Measured: address, Meaning: "it is not host:port", Do: "correct the setting"}
	}
	if port == 0 {
		return Finding{Verdict: OK, Measured: address, Meaning: "the system chooses a free port"}
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err == nil {
		_ = l.Close()
		return Finding{Verdict: OK, Measured: address + " is free"}
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return cannotListen(address, host, err)
	}
	pid := portOwner(port)
	if pid != 0 && pid == in.owner {
		return Finding{
			Verdict: OK, Measured: fmt.Sprintf("%s, in use by process %d", address, pid),
			Meaning: "by the node with this data directory",
		}
	}
	identity := "another process"
	if pid != 0 {
		identity = fmt.Sprintf("process %d (%s)", pid, nameOfProcess(pid))
	}
	return Finding{
		Verdict: Problem, Measured: fmt.Sprintf("%s is in use by %s", address, identity),
		Meaning: "the node cannot listen there",
		Do:      "stop that process, or set another port",
	}
}

func cannotListen(address, host string, err error) Finding {
	f := Finding{Verdict: Problem, Measured: fmt.Sprintf("%s: %v", address, err), Meaning: "the node cannot listen there"}
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		f.Do = "this machine has no address " + host + ": use an address of this machine, and set advertise to the " +
			"address for other machines"
	case errors.Is(err, os.ErrPermission):
		f.Do = "ports below 1024 require a privilege: use a higher one"
	default:
		f.Do = "correct the host or the port"
	}
	return f
}
