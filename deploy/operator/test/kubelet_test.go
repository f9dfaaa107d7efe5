// SPDX-License-Identifier: Apache-2.0

//go:build unix

package test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const fleetToken = "secret-of-sixteen-or-more"

// kubelet does the work of the controllers of StatefulSets, volumes and PodDisruptionBudgets, and of the kubelet. Each
// pod of a node is a process of lockstep on this machine, with the configuration of the ConfigMap. Other pods are
// ready without a process.
type kubelet struct {
	c      *cluster
	binary string
	dir    string

	mu    sync.Mutex // guards the fields below
	ports map[string]*harness.Port
	// stopped are the pods that were stopped, with their roles at that time and images, in this order.
	stopped []stop
}

type stop struct{ pod, role, image string }

// process is the process of a pod.
type process struct {
	pod    *corev1.Pod
	cmd    *exec.Cmd
	exited chan struct{}
	conn   *grpc.ClientConn
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	return &kubelet{dir: t.TempDir(), binary: build(t), ports: map[string]*harness.Port{}}
}

// start runs the kubelet until the end of the test.
func (k *kubelet) start(c *cluster) {
	k.c = c
	require.NoError(c.t, os.WriteFile(filepath.Join(k.dir, "token"), []byte(fleetToken), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		processes := map[types.UID]*process{}
		defer func() {
			for _, p := range processes {
				k.stop(p, syscall.SIGKILL)
			}
		}()
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if err := k.step(ctx, processes); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
				c.t.Log("kubelet:", err)
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// port returns the port of a pod.
func (k *kubelet) port(pod string) (*harness.Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.ports[pod]; p != nil {
		return p, nil
	}
	p, err := harness.ReservePort()
	k.ports[pod] = p
	return p, err
}

// dial connects to the process of the pod in the host name.
func (k *kubelet) dial(ctx context.Context, address string) (net.Conn, error) {
	if pod, rest, _ := strings.Cut(address, "."); strings.Contains(rest, ".svc.cluster.local") {
		p, err := k.port(pod)
		if err != nil {
			return nil, err
		}
		address = p.Address()
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

func (k *kubelet) stops() []stop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]stop(nil), k.stopped...)
}

func (k *kubelet) step(ctx context.Context, processes map[types.UID]*process) error {
	var sets appsv1.StatefulSetList
	if err := k.c.kube.List(ctx, &sets); err != nil {
		return err
	}
	for i := range sets.Items {
		if err := k.statefulSet(ctx, &sets.Items[i]); err != nil {
			return err
		}
	}
	var pods corev1.PodList
	if err := k.c.kube.List(ctx, &pods); err != nil {
		return err
	}
	for i := range pods.Items {
		if err := k.pod(ctx, &pods.Items[i], processes); err != nil {
			return err
		}
	}
	return k.budgets(ctx, pods.Items)
}

func revision(set *appsv1.StatefulSet) string {
	text, err := json.Marshal(set.Spec.Template)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return set.Name + "-" + hex.EncodeToString(sum[:4])
}

// statefulSet creates missing pods and volumes, and deletes those with a number that is not wanted.
func (k *kubelet) statefulSet(ctx context.Context, set *appsv1.StatefulSet) error {
	start := int32(0)
	if set.Spec.Ordinals != nil {
		start = set.Spec.Ordinals.Start
	}
	status := appsv1.StatefulSetStatus{
		ObservedGeneration: set.Generation, UpdateRevision: revision(set), CurrentRevision: revision(set),
	}
	for i := range int32(2) {
		name := fmt.Sprintf("%s-%d", set.Name, i)
		var pod corev1.Pod
		err := k.c.kube.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, &pod)
		exists := err == nil
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		wanted := i >= start && i < start+*set.Spec.Replicas
		switch {
		case exists && !wanted && pod.DeletionTimestamp.IsZero():
			err = k.c.kube.Delete(ctx, &pod)
		case !exists && wanted:
			err = k.createPod(ctx, set, name)
		default:
			err = nil
		}
		if err != nil {
			return err
		}
		if exists {
			status.Replicas++
			if isReady(&pod) {
				status.ReadyReplicas++
			}
		}
	}
	base := set.DeepCopy()
	set.Status = status
	return client.IgnoreNotFound(k.c.kube.Status().Patch(ctx, set, client.MergeFrom(base)))
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (k *kubelet) createPod(ctx context.Context, set *appsv1.StatefulSet, name string) error {
	pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = name, set.Namespace
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = revision(set)
	pod.Spec.NodeName, pod.Spec.Hostname = "machine", name
	for _, template := range set.Spec.VolumeClaimTemplates {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Name: template.Name + "-" + name, Namespace: set.Namespace, Labels: set.Spec.Selector.MatchLabels,
			},
			Spec: *template.Spec.DeepCopy(),
		}
		claim.Spec.VolumeName = "volume-" + claim.Name
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: template.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
		err := k.c.kube.Create(ctx, claim)
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return err
		}
		base := claim.DeepCopy()
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
		if err := k.c.kube.Status().Patch(ctx, claim, client.MergeFrom(base)); err != nil {
			return err
		}
	}
	return k.c.kube.Create(ctx, pod)
}

// pod starts and stops the process of a pod, and sets its readiness.
func (k *kubelet) pod(ctx context.Context, pod *corev1.Pod, processes map[types.UID]*process) error {
	p := processes[pod.UID]
	isNode := pod.Labels["app.kubernetes.io/component"] == "node"
	if !pod.DeletionTimestamp.IsZero() {
		if p != nil {
			role := k.roleAtStop(ctx, p)
			k.stop(p, syscall.SIGTERM)
			delete(processes, pod.UID)
			k.record(pod, role)
		} else {
			k.record(pod, "")
		}
		return client.IgnoreNotFound(k.c.kube.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	}
	ready := !isNode
	if isNode && !strings.HasSuffix(pod.Spec.Containers[0].Image, ":broken") {
		if p == nil {
			var err error
			if p, err = k.run(ctx, pod); err != nil {
				return err
			}
			processes[pod.UID] = p
		}
		role := k.role(ctx, p)
		ready = role == "ROLE_ACTIVE" || role == "ROLE_STANDBY" || role == "ROLE_ACTIVE_ALONE"
	}
	if ready == isReady(pod) {
		return nil
	}
	base := pod.DeepCopy()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	return client.IgnoreNotFound(k.c.kube.Status().Patch(ctx, pod, client.MergeFrom(base)))
}

func (k *kubelet) record(pod *corev1.Pod, role string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = append(k.stopped, stop{pod.Name, role, pod.Spec.Containers[0].Image})
}

// run starts the process of a pod with the file of its ConfigMap.
func (k *kubelet) run(ctx context.Context, pod *corev1.Pod) (*process, error) {
	name := pod.Name[:strings.LastIndexByte(pod.Name, '-')]
	var config corev1.ConfigMap
	if err := k.c.kube.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name}, &config); err != nil {
		return nil, err
	}
	dir := filepath.Join(k.dir, pod.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(file, []byte(config.Data["node.yaml"]), 0o600); err != nil {
		return nil, err
	}
	port, err := k.port(pod.Name)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(k.binary, "serve", "--config="+file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(harness.Environment(), "LOCKSTEP_NODE_NAME="+pod.Name,
		"LOCKSTEP_DATA_DIR="+filepath.Join(dir, "data"), "LOCKSTEP_LISTEN="+port.Address(),
		"LOCKSTEP_ADVERTISE="+port.Address(), "LOCKSTEP_METRICS_LISTEN=127.0.0.1:0")
	if strings.Contains(config.Data["node.yaml"], "/secrets/fleet/token") {
		cmd.Env = append(cmd.Env, "LOCKSTEP_FLEET_TOKEN_FILE="+filepath.Join(k.dir, "token"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pod: pod.DeepCopy(), cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	p.conn, err = grpc.NewClient("passthrough:///"+port.Address(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: poll, Multiplier: 1, MaxDelay: poll}, MinConnectTimeout: patience,
		}))
	return p, err
}

func (k *kubelet) stop(p *process, signal os.Signal) {
	_ = p.cmd.Process.Signal(signal)
	<-p.exited
	_ = p.conn.Close()
}

// roleAtStop returns the role of a process before it is stopped; "" only if it has exited. Its connection may not be
// established yet: the operator, which has other connections, can know earlier that the node is in sync.
func (k *kubelet) roleAtStop(ctx context.Context, p *process) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	return k.role(ctx, p, grpc.WaitForReady(true))
}

// role returns the role of a process; "" if it does not respond.
func (k *kubelet) role(ctx context.Context, p *process, options ...grpc.CallOption) string {
	select {
	case <-p.exited:
		k.c.t.Logf("%s exited: %s", p.pod.Name, k.log(p.pod.Name))
		return ""
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := pb.NewAdminServiceClient(p.conn).GetStatus(ctx, &pb.GetStatusRequest{}, options...)
	if err != nil {
		return ""
	}
	return s.GetRole().String()
}

// log returns the end of the log of a pod.
func (k *kubelet) log(pod string) string {
	text, err := os.ReadFile(filepath.Join(k.dir, pod, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// budgets sets the status of PodDisruptionBudgets, without which no pod can be evicted.
func (k *kubelet) budgets(ctx context.Context, pods []corev1.Pod) error {
	var list policyv1.PodDisruptionBudgetList
	if err := k.c.kube.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		b := &list.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			return err
		}
		base := b.DeepCopy()
		s := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation}
		for j := range pods {
			if pods[j].Namespace == b.Namespace && selector.Matches(labels.Set(pods[j].Labels)) {
				s.ExpectedPods++
				if isReady(&pods[j]) && pods[j].DeletionTimestamp.IsZero() {
					s.CurrentHealthy++
				}
			}
		}
		s.DesiredHealthy = max(0, s.ExpectedPods-1)
		s.DisruptionsAllowed = max(0, s.CurrentHealthy-s.DesiredHealthy)
		b.Status = s
		err = k.c.kube.Status().Patch(ctx, b, client.MergeFrom(base))
		if client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
