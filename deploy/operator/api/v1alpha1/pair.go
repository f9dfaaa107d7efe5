// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// LockstepPair is a pair of Lockstep nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lspair
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="In sync",type=string,JSONPath=`.status.conditions[?(@.type=="InSync")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.activeNode`
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.spec.fleet.pair`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image.tag`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40",message="the name must have at most 40 characters"
type LockstepPair struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   PairSpec   `json:"spec"`
	Status PairStatus `json:"status,omitzero"`
}

// LockstepPairList is a list of pairs.
//
// +kubebuilder:object:root=true
type LockstepPairList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LockstepPair `json:"items"`
}

// PairSpec is the desired state of a pair.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || (has(self.tls.mode) && self.tls.mode != 'secret') || has(self.tls.secretName)",message="tls.secretName is required: the Secret with tls.crt, tls.key and ca.crt; or use tls.mode certManager, or none in a trusted network"
// +kubebuilder:validation:XValidation:rule="has(self.tls)",message="tls is required: set tls.secretName, or tls.mode"
// +kubebuilder:validation:XValidation:rule="(has(self.coordinator) && has(self.coordinator.type) ? self.coordinator.type : 'witness') == (has(oldSelf.coordinator) && has(oldSelf.coordinator.type) ? oldSelf.coordinator.type : 'witness')",message="coordinator.type cannot be changed"
type PairSpec struct {
	// Image of the nodes and the witness. A change replaces the pods one by one.
	// +required
	Image            Image                         `json:"image"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Domain of the cluster. Default: cluster.local
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// Location of the cluster record.
	Coordinator Coordinator `json:"coordinator,omitzero"`
	TLS         TLS         `json:"tls,omitzero"`
	// Secret shared by the nodes. For a pair without TLS, or with tls.clientAuth none.
	PeerToken PeerToken `json:"peerToken,omitzero"`
	// Credentials of the operator for requests to the nodes.
	Operator OperatorAccess `json:"operator,omitzero"`
	// Pair of another site.
	Site Site `json:"site,omitzero"`
	// Membership in a fleet.
	Fleet FleetMember `json:"fleet,omitzero"`
	// More settings of a node, as in node.yaml. Settings of the operator take precedence.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Config  *runtime.RawExtension `json:"config,omitempty"`
	Metrics Metrics               `json:"metrics,omitzero"`
	Console Console               `json:"console,omitzero"`
	Service Service               `json:"service,omitzero"`
	// Service of the active node only.
	ActiveService ActiveService `json:"activeService,omitzero"`
	Persistence   Persistence   `json:"persistence,omitzero"`
	// Resources of a node. Default: requests of 500m CPU and 1Gi of memory, and a limit of 1Gi of memory.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// required: nodes and witness are never scheduled on the same machine. preferred: only if necessary.
	// Default: required
	// +kubebuilder:validation:Enum=required;preferred
	AntiAffinity              string                            `json:"antiAffinity,omitempty"`
	NodeSelector              map[string]string                 `json:"nodeSelector,omitempty"`
	Tolerations               []corev1.Toleration               `json:"tolerations,omitempty"`
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	PriorityClassName         string                            `json:"priorityClassName,omitempty"`
	PodAnnotations            map[string]string                 `json:"podAnnotations,omitempty"`
	PodLabels                 map[string]string                 `json:"podLabels,omitempty"`
	// Time in seconds for the switchover and the last checkpoint. Default: 60
	// +kubebuilder:validation:Minimum=1
	TerminationGracePeriodSeconds int64               `json:"terminationGracePeriodSeconds,omitempty"`
	Witness                       Witness             `json:"witness,omitzero"`
	ServiceAccount                ServiceAccount      `json:"serviceAccount,omitzero"`
	PodDisruptionBudget           PodDisruptionBudget `json:"podDisruptionBudget,omitzero"`
	NetworkPolicy                 NetworkPolicy       `json:"networkPolicy,omitzero"`
}

// Image selects a container image.
type Image struct {
	// Default: lockstep
	Repository string `json:"repository,omitempty"`
	// +required
	// +kubebuilder:validation:MinLength=1
	Tag string `json:"tag"`
	// Default: IfNotPresent
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
}

// Coordinator is the location of the cluster record.
//
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'etcd' || (has(self.etcd) && has(self.etcd.endpoints) && self.etcd.endpoints.size() > 0)",message="etcd.endpoints is required"
type Coordinator struct {
	// witness: a quorum of the two nodes and a third pod. etcd: an existing etcd, not that of Kubernetes. Default: witness
	// +kubebuilder:validation:Enum=witness;etcd
	Type string `json:"type,omitempty"`
	Etcd Etcd   `json:"etcd,omitzero"`
}

// Etcd is an existing etcd cluster.
type Etcd struct {
	// host:port
	Endpoints []string `json:"endpoints,omitempty"`
	// Unique per pair. Default: /lockstep/<namespace>/<name>/
	Prefix   string `json:"prefix,omitempty"`
	Username string `json:"username,omitempty"`
	// Secret with the key password.
	PasswordSecret string `json:"passwordSecret,omitempty"`
	// Secret with ca.crt, and tls.crt and tls.key if etcd requires a client certificate.
	TLSSecret string `json:"tlsSecret,omitempty"`
	// Default: true
	TLSClientCertificate *bool `json:"tlsClientCertificate,omitempty"`
}

// TLS configures the certificates.
type TLS struct {
	// secret: a Secret with tls.crt, tls.key and ca.crt. certManager: a certificate from cert-manager. none: no TLS, for a
	// trusted network. Default: secret
	// +kubebuilder:validation:Enum=secret;certManager;none
	Mode        string      `json:"mode,omitempty"`
	SecretName  string      `json:"secretName,omitempty"`
	CertManager CertManager `json:"certManager,omitzero"`
	// require: clients need a certificate of the same CA. none: any client may connect. Default: require
	// +kubebuilder:validation:Enum=require;none
	ClientAuth string `json:"clientAuth,omitempty"`
}

// CertManager selects the issuer of the certificate.
type CertManager struct {
	IssuerRef IssuerRef `json:"issuerRef,omitzero"`
	// More names in the certificate.
	DNSNames []string `json:"dnsNames,omitempty"`
	// Default: 2160h
	Duration string `json:"duration,omitempty"`
	// Default: 720h
	RenewBefore string `json:"renewBefore,omitempty"`
}

// IssuerRef refers to an issuer of cert-manager.
type IssuerRef struct {
	Name string `json:"name,omitempty"`
	// Default: Issuer
	// +kubebuilder:validation:Enum=Issuer;ClusterIssuer
	Kind string `json:"kind,omitempty"`
	// Default: cert-manager.io
	Group string `json:"group,omitempty"`
}

// PeerToken refers to a Secret with the key token.
type PeerToken struct {
	SecretName string `json:"secretName,omitempty"`
}

// OperatorAccess contains the credentials of the operator for requests to the nodes. They need the right to operate,
// and for LockstepQueues the right to administer queues.
type OperatorAccess struct {
	// Secret with the key token. Required if access rules are enabled and the certificate does not suffice.
	TokenSecret string `json:"tokenSecret,omitempty"`
	// Secret with ca.crt, tls.crt and tls.key. Default: the Secret of the nodes.
	TLSSecret string `json:"tlsSecret,omitempty"`
}

// Site is the membership of a pair in a group of two sites.
type Site struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]{0,64}$`
	Name string `json:"name,omitempty"`
	// Addresses of the nodes of the other site, host:port.
	Remote []string `json:"remote,omitempty"`
	// Secret with the key token, shared by both sites.
	TokenSecret string `json:"tokenSecret,omitempty"`
	// Secret with ca.crt of the other site. Default: ca.crt of the nodes.
	CASecret string `json:"caSecret,omitempty"`
}

// FleetMember is the membership of a pair in a fleet.
type FleetMember struct {
	// Name of the pair in the fleet. Empty: no fleet. A LockstepFleet sets it.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]{0,63}$`
	Pair string `json:"pair,omitempty"`
	// Equal on all pairs. Default: /lockstep/fleet
	Prefix string `json:"prefix,omitempty"`
	// Default: coordinator.etcd.endpoints; required with coordinator.type witness.
	Endpoints []string `json:"endpoints,omitempty"`
	// Secret with the key token, shared by all pairs, for moves of queues.
	TokenSecret string `json:"tokenSecret,omitempty"`
	// Labels of the pair, which placement rules select.
	Labels map[string]string `json:"labels,omitempty"`
}

// Metrics configures the listener for Prometheus and the probes.
type Metrics struct {
	// host:port. Default: 0.0.0.0:9420
	// +kubebuilder:validation:Pattern=`^[^:]*:[1-9][0-9]{0,4}$`
	Listen string `json:"listen,omitempty"`
	// Secret with the key token: bearer token for Prometheus.
	TokenSecret string `json:"tokenSecret,omitempty"`
}

// Console configures the web console.
type Console struct {
	// host:port. Empty: no console.
	// +kubebuilder:validation:Pattern=`^([^:]*:[1-9][0-9]{0,4})?$`
	Listen string `json:"listen,omitempty"`
}

// Service configures the Service of both nodes.
type Service struct {
	// Default: ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`
	// Default: 7420
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port        int32             `json:"port,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ActiveService configures the Service of the active node.
type ActiveService struct {
	Enabled bool `json:"enabled,omitempty"`
	// Default: ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type        corev1.ServiceType `json:"type,omitempty"`
	Annotations map[string]string  `json:"annotations,omitempty"`
}

// Persistence configures the volumes of the nodes.
type Persistence struct {
	// Size of each volume. A larger size enlarges existing volumes; a smaller one has no effect on them. Default: 20Gi
	Size *resource.Quantity `json:"size,omitempty"`
	// Empty: the default storage class of the cluster. A change has no effect on an existing pair.
	StorageClass string `json:"storageClass,omitempty"`
	// Default: ReadWriteOnce
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	Annotations map[string]string                   `json:"annotations,omitempty"`
}

// Witness configures the third voter.
type Witness struct {
	Persistence WitnessPersistence `json:"persistence,omitzero"`
	// Default: requests of 50m CPU and 64Mi of memory, and a limit of 128Mi of memory.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// WitnessPersistence configures the volume of the witness.
type WitnessPersistence struct {
	// Default: 1Gi
	Size         *resource.Quantity `json:"size,omitempty"`
	StorageClass string             `json:"storageClass,omitempty"`
}

// ServiceAccount is the account of the pods.
type ServiceAccount struct {
	// Default: true
	Create *bool `json:"create,omitempty"`
	// Default: the name of the pair, or default if the account is not created.
	Name        string            `json:"name,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodDisruptionBudget configures whether evictions are limited to one pod.
type PodDisruptionBudget struct {
	// Default: true
	Enabled *bool `json:"enabled,omitempty"`
}

// NetworkPolicy restricts the sources of connections to the pods. The operator's pod must be one of the clients.
type NetworkPolicy struct {
	Enabled bool `json:"enabled,omitempty"`
	// Sources for the port of the nodes and the console. Empty: all pods.
	Clients []networkingv1.NetworkPolicyPeer `json:"clients,omitempty"`
	// Sources for the metrics. Empty: all pods.
	Metrics []networkingv1.NetworkPolicyPeer `json:"metrics,omitempty"`
}

// PairStatus is the observed state of a pair.
type PairStatus struct {
	// Generation of the spec that the conditions describe.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Name of the pod of the active node; empty if no node serves.
	ActiveNode string `json:"activeNode,omitempty"`
	// Nodes, in the order of their pods.
	Nodes []NodeStatus `json:"nodes,omitempty"`
	// Progress of the drain while the pair is being deleted.
	Drain *DrainStatus `json:"drain,omitempty"`
	// Conditions.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeStatus is the observed state of a node.
type NodeStatus struct {
	// Name of the pod.
	Name string `json:"name"`
	// Role, such as ACTIVE or STANDBY; empty if the node does not respond.
	Role string `json:"role,omitempty"`
	// Release of the node.
	Version string `json:"version,omitempty"`
	// The pod is ready.
	Ready bool `json:"ready,omitempty"`
	// The pod has the current template.
	Updated bool `json:"updated,omitempty"`
}

// DrainStatus is the progress of the removal of a pair from its fleet.
type DrainStatus struct {
	// Draining: queues are being moved. Stopping: the pair has left the fleet, and its nodes are being stopped.
	Phase string `json:"phase"`
	// Queues that remain on the pair.
	Queues int64 `json:"queues"`
	// Why the drain does not continue.
	Message string `json:"message,omitempty"`
	// Queues that cannot be moved, at most 20 entries. Queues that must be moved together have one entry.
	Blocked []BlockedQueues `json:"blocked,omitempty"`
}

// BlockedQueues are queues that must be moved together, but cannot be moved.
type BlockedQueues struct {
	// Name of the first queue.
	Queue string `json:"queue"`
	// Number of queues.
	Queues int64 `json:"queues"`
	// policy-dead-letter, prepared-transaction, placement-rule, no-space, no-pair, too-many-queues, not-assigned, or
	// failed.
	Reason string `json:"reason"`
	// Details of the reason.
	Message string `json:"message,omitempty"`
}
