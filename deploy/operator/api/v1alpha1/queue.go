// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LockstepQueue is a queue of a pair or a fleet. An existing queue with this name is changed to the spec.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lsqueue
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Queue",type=string,JSONPath=`.status.queue`
// +kubebuilder:printcolumn:name="Pair",type=string,JSONPath=`.status.pair`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LockstepQueue struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   QueueSpec   `json:"spec"`
	Status QueueStatus `json:"status,omitzero"`
}

// LockstepQueueList is a list of queues.
//
// +kubebuilder:object:root=true
type LockstepQueueList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LockstepQueue `json:"items"`
}

// DeletionPolicy determines the effect of the deletion of a LockstepQueue.
type DeletionPolicy string

// Deletion policies.
const (
	// Retain keeps the queue.
	Retain DeletionPolicy = "Retain"
	// DeleteIfEmpty deletes the queue when it contains no messages.
	DeleteIfEmpty DeletionPolicy = "DeleteIfEmpty"
	// Delete deletes the queue with its messages.
	Delete DeletionPolicy = "Delete"
)

// QueueSpec is the desired state of a queue.
//
// +kubebuilder:validation:XValidation:rule="has(self.pair) != has(self.fleet)",message="set either pair or fleet"
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",message="name cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.placementGroup) == has(oldSelf.placementGroup) && (!has(self.placementGroup) || self.placementGroup == oldSelf.placementGroup)",message="placementGroup cannot be changed"
type QueueSpec struct {
	// Name of the LockstepPair in the same namespace.
	Pair string `json:"pair,omitempty"`
	// Name of the LockstepFleet in the same namespace.
	Fleet string `json:"fleet,omitempty"`
	// Name of the queue. Default: the name of the LockstepQueue.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._/{}-]*$`
	Name string `json:"name,omitempty"`
	// In a fleet, the queue is created on the pair of the other queues of this group.
	// +kubebuilder:validation:MaxLength=255
	PlacementGroup string `json:"placementGroup,omitempty"`
	// Create the queue without a subscription. It has no effect on an existing queue.
	Topic bool `json:"topic,omitempty"`
	// Subscriptions that are created. Others are not deleted.
	// +listType=map
	// +listMapKey=name
	Subscriptions []QueueSubscription `json:"subscriptions,omitempty"`
	// Options of the queue. All options that are set on the queue itself are replaced.
	Config QueueConfig `json:"config,omitzero"`
	// Effect of the deletion of the LockstepQueue on the queue. Default: Retain
	// +kubebuilder:validation:Enum=Retain;DeleteIfEmpty;Delete
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// QueueSubscription is a durable subscription.
type QueueSubscription struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// CEL expression that messages must match. It is used only when the subscription is created.
	Filter string `json:"filter,omitempty"`
}

// QueueConfig contains the options of a queue. 0 and empty values set no option; a policy may then apply.
type QueueConfig struct {
	// +kubebuilder:validation:Minimum=0
	MaxMessages int64 `json:"maxMessages,omitempty"`
	// +kubebuilder:validation:Minimum=0
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	MaxDeliveries int32 `json:"maxDeliveries,omitempty"`
	// Name of the dead-letter queue, which must exist on the same pair.
	DeadLetter        string           `json:"deadLetter,omitempty"`
	DeadLetterExpired bool             `json:"deadLetterExpired,omitempty"`
	TTL               *metav1.Duration `json:"ttl,omitempty"`
	Delay             *metav1.Duration `json:"delay,omitempty"`
	RedeliveryDelay   *metav1.Duration `json:"redeliveryDelay,omitempty"`
	// Factor of redeliveryDelay for each further redelivery, such as "1.5".
	// +kubebuilder:validation:Pattern=`^[0-9]{1,4}(\.[0-9]{1,2})?$`
	RedeliveryMultiplier string           `json:"redeliveryMultiplier,omitempty"`
	RedeliveryMaxDelay   *metav1.Duration `json:"redeliveryMaxDelay,omitempty"`
	RetentionAge         *metav1.Duration `json:"retentionAge,omitempty"`
	// +kubebuilder:validation:Minimum=0
	RetentionBytes int64 `json:"retentionBytes,omitempty"`
	// +kubebuilder:validation:Minimum=0
	RetentionMessages int64 `json:"retentionMessages,omitempty"`
	// Behavior of publishes to a full queue, as in lockstep queue create --overflow.
	Overflow string `json:"overflow,omitempty"`
	// Deliver messages of a higher priority first. It cannot be changed on an existing queue.
	Priorities  bool             `json:"priorities,omitempty"`
	Exclusive   bool             `json:"exclusive,omitempty"`
	AckTimeout  *metav1.Duration `json:"ackTimeout,omitempty"`
	DedupWindow *metav1.Duration `json:"dedupWindow,omitempty"`
	// +kubebuilder:validation:Minimum=0
	DedupMax int64 `json:"dedupMax,omitempty"`
}

// QueueStatus is the observed state of a queue.
type QueueStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Name of the queue.
	Queue string `json:"queue,omitempty"`
	// Name of the pair of the fleet that owns the queue, or of the LockstepPair.
	Pair string `json:"pair,omitempty"`
	// Conditions.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
