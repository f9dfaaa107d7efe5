// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LockstepFleet is a set of pairs with a common directory of their queues.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lsfleet
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="In sync",type=string,JSONPath=`.status.conditions[?(@.type=="InSync")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`
// +kubebuilder:printcolumn:name="Pairs",type=integer,JSONPath=`.status.pairs`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updatedPairs`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.template.spec.image.tag`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 30",message="the name must have at most 30 characters"
type LockstepFleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   FleetSpec   `json:"spec"`
	Status FleetStatus `json:"status,omitzero"`
}

// LockstepFleetList is a list of fleets.
//
// +kubebuilder:object:root=true
type LockstepFleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LockstepFleet `json:"items"`
}

// FleetSpec is the desired state of a fleet.
//
// +kubebuilder:validation:XValidation:rule="has(self.count) != has(self.pairs)",message="set either count or pairs"
type FleetSpec struct {
	// Number of pairs, with the names a, b, c and so on. The last ones are removed first.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=26
	Count int32 `json:"count,omitempty"`
	// Pairs. A pair that is removed from the list is drained: its queues move to the other pairs.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=name
	Pairs []FleetPair `json:"pairs,omitempty"`
	// Settings of the directory.
	Directory FleetDirectory `json:"directory,omitzero"`
	// Template of the pairs. A change is applied to one pair at a time.
	// +required
	Template PairTemplate `json:"template"`
}

// FleetPair is a pair of a fleet.
type FleetPair struct {
	// Name of the pair in the fleet. The LockstepPair has the name <fleet>-<name>.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=9
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Labels of the pair for placement rules, in addition to those of the template.
	Labels map[string]string `json:"labels,omitempty"`
	// Replaces the nodeSelector of the template.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// FleetDirectory contains the settings of the directory of a fleet.
type FleetDirectory struct {
	// Default: /lockstep-fleets/<namespace>/<name of the LockstepFleet>
	Prefix string `json:"prefix,omitempty"`
	// Addresses of etcd, host:port. Default: coordinator.etcd.endpoints of the template.
	Endpoints []string `json:"endpoints,omitempty"`
	// Secret with the key token, shared by all pairs, for moves of queues. Required without TLS.
	TokenSecret string `json:"tokenSecret,omitempty"`
}

// PairTemplate is the template of the pairs.
type PairTemplate struct {
	// Labels of the LockstepPairs.
	Labels map[string]string `json:"labels,omitempty"`
	// Spec of the pairs. fleet.pair, fleet.prefix, fleet.endpoints and fleet.tokenSecret are overwritten, and
	// coordinator.etcd.prefix must be empty.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.coordinator) || !has(self.coordinator.etcd) || !has(self.coordinator.etcd.prefix)",message="coordinator.etcd.prefix must be different in each pair: leave it empty"
	Spec PairSpec `json:"spec"`
}

// FleetStatus is the observed state of a fleet.
type FleetStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Number of LockstepPairs, including those that are being drained.
	Pairs int32 `json:"pairs"`
	// Number of ready pairs with the current template.
	UpdatedPairs int32 `json:"updatedPairs"`
	// Name of the pair that is being drained, or has the current template and is not healthy yet; otherwise empty.
	CurrentPair string `json:"currentPair,omitempty"`
	// Conditions.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
