// SPDX-License-Identifier: Apache-2.0

// Package objects creates the Kubernetes objects of a pair. They are equal to the output of the Helm chart
// deploy/helm/lockstep for a release with the name of the pair, with two exceptions: the labels of the release, and the
// update strategy, because the operator deletes the pods in the right order itself.
package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
)

// Labels of the objects of a pair.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelComponent = "app.kubernetes.io/component"
	LabelVersion   = "app.kubernetes.io/version"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	LabelRole      = "lockstep-mq.io/role"

	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "lockstep-operator"

	componentNode    = "node"
	componentWitness = "witness"
)

// Nodes is the number of nodes of a pair.
const Nodes = 2

const (
	grpcPort = 7420
	raftPort = 7430
)

// Pair creates the objects of one LockstepPair.
type Pair struct {
	o *v1alpha1.LockstepPair
	s v1alpha1.PairSpec // with defaults
}

// New returns the Pair of a LockstepPair. It sets the defaults of the Helm chart in a copy of the spec.
func New(o *v1alpha1.LockstepPair) *Pair { return &Pair{o: o, s: withDefaults(o.Spec)} }

// Spec returns the spec with all defaults.
func (p *Pair) Spec() *v1alpha1.PairSpec { return &p.s }

// Name returns the name of the StatefulSet of the nodes, and of most other objects.
func (p *Pair) Name() string { return p.o.Name }

// WitnessName returns the name of the StatefulSet of the witness.
func (p *Pair) WitnessName() string { return p.o.Name + "-witness" }

// HasWitness reports whether the pair has a witness.
func (p *Pair) HasWitness() bool { return p.s.Coordinator.Type == coordinatorWitness }

// PodName returns the name of the pod of a node, 0 or 1. The node has the same name.
func (p *Pair) PodName(i int) string { return fmt.Sprintf("%s-%d", p.o.Name, i) }

// ClaimName returns the name of the PersistentVolumeClaim of a node.
func (p *Pair) ClaimName(i int) string { return "data-" + p.PodName(i) }

// Address returns the address of a node, host:port.
func (p *Pair) Address(i int) string {
	return fmt.Sprintf("%s.%s:%d", p.PodName(i), p.domain(), grpcPort)
}

// Addresses returns the addresses of both nodes.
func (p *Pair) Addresses() []string { return []string{p.Address(0), p.Address(1)} }

// TLSSecret returns the name of the Secret with the certificate of the nodes.
func (p *Pair) TLSSecret() string {
	if p.s.TLS.Mode == tlsCertManager && p.s.TLS.SecretName == "" {
		return p.o.Name + "-tls"
	}
	return p.s.TLS.SecretName
}

// TLS reports whether connections to the nodes are encrypted.
func (p *Pair) TLS() bool { return p.s.TLS.Mode != tlsNone }

func (p *Pair) peers() string { return p.o.Name + "-peers" }

func (p *Pair) domain() string {
	return fmt.Sprintf("%s.%s.svc.%s", p.peers(), p.o.Namespace, p.s.ClusterDomain)
}

func (p *Pair) voters() []string {
	voters := make([]string, 0, Nodes+1)
	for _, pod := range []string{p.PodName(0), p.PodName(1), p.WitnessName() + "-0"} {
		voters = append(voters, fmt.Sprintf("%s.%s:%d", pod, p.domain(), raftPort))
	}
	return voters
}

// Selector returns the labels of all pods of the pair.
func (p *Pair) Selector() map[string]string {
	return map[string]string{LabelName: "lockstep", LabelInstance: p.o.Name}
}

func (p *Pair) selector(component string) map[string]string {
	s := p.Selector()
	s[LabelComponent] = component
	return s
}

func (p *Pair) meta(name, component string) metav1.ObjectMeta {
	labels := p.Selector()
	labels[LabelVersion], labels[LabelManagedBy] = p.s.Image.Tag, ManagedBy
	if component != "" {
		labels[LabelComponent] = component
	}
	return metav1.ObjectMeta{Name: name, Namespace: p.o.Namespace, Labels: labels}
}

func (p *Pair) nodesAndWitness() *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchLabels: p.Selector(),
		MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: LabelComponent, Operator: metav1.LabelSelectorOpIn, Values: []string{componentNode, componentWitness},
		}},
	}
}

func (p *Pair) image() string { return p.s.Image.Repository + ":" + p.s.Image.Tag }

// portOf returns the port of a listen address, host:port.
func portOf(listen string) int32 {
	n, err := strconv.ParseInt(listen[strings.LastIndexByte(listen, ':')+1:], 10, 32)
	if err != nil {
		return 0 // excluded by the schema
	}
	return int32(n)
}

// All returns all objects except the StatefulSets, in the order in which they must be created.
func (p *Pair) All() ([]client.Object, error) {
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	all := []client.Object{
		&corev1.ConfigMap{
			TypeMeta: typeMeta("v1", "ConfigMap"), ObjectMeta: p.meta(p.Name(), ""),
			Data: map[string]string{"node.yaml": config},
		},
	}
	if *p.s.ServiceAccount.Create {
		account := &corev1.ServiceAccount{
			TypeMeta: typeMeta("v1", "ServiceAccount"), ObjectMeta: p.meta(p.serviceAccount(), ""),
			AutomountServiceAccountToken: new(bool),
		}
		account.Annotations = p.s.ServiceAccount.Annotations
		all = append(all, account)
	}
	if p.s.ActiveService.Enabled {
		all = append(all, p.role(), p.roleBinding())
	}
	all = append(all, p.services()...)
	if *p.s.PodDisruptionBudget.Enabled {
		one := intstr.FromInt32(1)
		all = append(all, &policyv1.PodDisruptionBudget{
			TypeMeta: typeMeta("policy/v1", "PodDisruptionBudget"), ObjectMeta: p.meta(p.Name(), ""),
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: p.nodesAndWitness()},
		})
	}
	if p.s.NetworkPolicy.Enabled {
		all = append(all, p.networkPolicy())
	}
	if p.s.TLS.Mode == tlsCertManager {
		all = append(all, p.certificate())
	}
	return all, nil
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func (p *Pair) role() client.Object {
	return &rbacv1.Role{
		TypeMeta: typeMeta("rbac.authorization.k8s.io/v1", "Role"), ObjectMeta: p.meta(p.Name(), ""),
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"pods"},
			ResourceNames: []string{p.PodName(0), p.PodName(1)}, Verbs: []string{"patch"},
		}},
	}
}

func (p *Pair) roleBinding() client.Object {
	return &rbacv1.RoleBinding{
		TypeMeta: typeMeta("rbac.authorization.k8s.io/v1", "RoleBinding"), ObjectMeta: p.meta(p.Name(), ""),
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: p.Name()},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: p.serviceAccount(), Namespace: p.o.Namespace}},
	}
}

func (p *Pair) services() []client.Object {
	port := func(name string, number int32, target intstr.IntOrString) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: target, Protocol: corev1.ProtocolTCP}
	}
	service := func(name, component string, spec corev1.ServiceSpec) *corev1.Service {
		return &corev1.Service{TypeMeta: typeMeta("v1", "Service"), ObjectMeta: p.meta(name, component), Spec: spec}
	}
	peers := service(p.peers(), "", corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true, Selector: p.Selector(),
		Ports: []corev1.ServicePort{port("grpc", grpcPort, intstr.FromInt32(grpcPort))},
	})
	if p.HasWitness() {
		peers.Spec.Ports = append(peers.Spec.Ports, port("raft", raftPort, intstr.FromInt32(raftPort)))
	}
	nodes := service(p.Name(), componentNode, corev1.ServiceSpec{
		Type: p.s.Service.Type, Selector: p.selector(componentNode),
		Ports: []corev1.ServicePort{
			port("grpc", p.s.Service.Port, intstr.FromString("grpc")),
			port("metrics", portOf(p.s.Metrics.Listen), intstr.FromString("metrics")),
		},
	})
	nodes.Annotations = p.s.Service.Annotations
	if listen := p.s.Console.Listen; listen != "" {
		nodes.Spec.Ports = append(nodes.Spec.Ports, port("console", portOf(listen), intstr.FromString("console")))
	}
	all := []client.Object{peers, nodes}
	if p.s.ActiveService.Enabled {
		selector := p.selector(componentNode)
		selector[LabelRole] = "active"
		active := service(p.Name()+"-active", "", corev1.ServiceSpec{
			Type: p.s.ActiveService.Type, Selector: selector,
			Ports: []corev1.ServicePort{port("grpc", p.s.Service.Port, intstr.FromString("grpc"))},
		})
		active.Annotations = p.s.ActiveService.Annotations
		all = append(all, active)
	}
	return all
}

// StatefulSet returns the StatefulSet of the nodes.
func (p *Pair) StatefulSet() (*appsv1.StatefulSet, error) {
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(config))
	annotations := map[string]string{"checksum/config": hex.EncodeToString(sum[:])}
	maps.Copy(annotations, p.s.PodAnnotations)
	replicas := int32(Nodes)
	return &appsv1.StatefulSet{
		TypeMeta: typeMeta("apps/v1", "StatefulSet"), ObjectMeta: p.meta(p.Name(), componentNode),
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: p.peers(), PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy:  appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			MinReadySeconds: 5, PersistentVolumeClaimRetentionPolicy: retain(),
			Selector: &metav1.LabelSelector{MatchLabels: p.selector(componentNode)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: p.podLabels(componentNode), Annotations: annotations},
				Spec:       p.nodePod(),
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim(p.s.Persistence)},
		},
	}, nil
}

// Witness returns the StatefulSet of the witness, or nil.
func (p *Pair) Witness() *appsv1.StatefulSet {
	if !p.HasWitness() {
		return nil
	}
	one := int32(1)
	return &appsv1.StatefulSet{
		TypeMeta: typeMeta("apps/v1", "StatefulSet"), ObjectMeta: p.meta(p.WitnessName(), componentWitness),
		Spec: appsv1.StatefulSetSpec{
			Replicas: &one, ServiceName: p.peers(), PersistentVolumeClaimRetentionPolicy: retain(),
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			Selector:       &metav1.LabelSelector{MatchLabels: p.selector(componentWitness)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: p.podLabels(componentWitness)},
				Spec:       p.witnessPod(),
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim(v1alpha1.Persistence{
				Size: p.s.Witness.Persistence.Size, StorageClass: p.s.Witness.Persistence.StorageClass,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			})},
		},
	}
}

func (p *Pair) podLabels(component string) map[string]string {
	labels := p.selector(component)
	maps.Copy(labels, p.s.PodLabels)
	return labels
}

func retain() *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	return &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
}

func claim(v v1alpha1.Persistence) corev1.PersistentVolumeClaim {
	c := corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: v.Annotations},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: slices.Clone(v.AccessModes),
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *v.Size}},
		},
	}
	if v.StorageClass != "" {
		c.Spec.StorageClassName = &v.StorageClass
	}
	return c
}
