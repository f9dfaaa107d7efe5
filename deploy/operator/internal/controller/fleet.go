// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
)

const (
	// fleetLabel is the label of a LockstepPair with the name of its LockstepFleet.
	fleetLabel = v1alpha1.Group + "/fleet"
	// specAnnotation is the annotation of a LockstepPair with the hash of the spec that the LockstepFleet has written.
	specAnnotation = v1alpha1.Group + "/fleet-spec"
)

// FleetReconciler reconciles LockstepFleets.
type FleetReconciler struct {
	client.Client

	Events events.EventRecorder
	// Interval is the interval between two checks. Default 10 s.
	Interval time.Duration
}

// SetupWithManager registers the controller.
func (r *FleetReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Interval == 0 {
		r.Interval = checkInterval
	}
	err := ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.LockstepFleet{}).Owns(&v1alpha1.LockstepPair{}).Complete(r)
	if err != nil {
		return fmt.Errorf("controller of fleets: %w", err)
	}
	return nil
}

// Reconcile creates missing pairs, deletes pairs that are no longer in the spec, and changes at most one pair.
func (r *FleetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	fleet := &v1alpha1.LockstepFleet{}
	if err := r.Get(ctx, req.NamespacedName, fleet); err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	if !fleet.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // the garbage collector deletes the pairs
	}
	base := fleet.DeepCopy()
	err := r.sync(ctx, fleet)
	if !equality.Semantic.DeepEqual(base.Status, fleet.Status) {
		patch := r.Status().Patch(ctx, fleet, client.MergeFrom(base))
		err = errors.Join(err, client.IgnoreNotFound(patch))
	}
	return ctrl.Result{RequeueAfter: r.Interval}, err
}

func (r *FleetReconciler) sync(ctx context.Context, fleet *v1alpha1.LockstepFleet) error {
	existing, err := fleetPairs(ctx, r.Client, fleet)
	if err != nil {
		return err
	}
	var wanted []*v1alpha1.LockstepPair
	names := map[string]bool{}
	for _, p := range pairsOf(fleet) {
		pair, err := desired(fleet, p)
		if err != nil {
			return err
		}
		wanted, names[pair.Name] = append(wanted, pair), true
	}
	current := ""
	for _, pair := range existing {
		if names[pair.Name] {
			continue
		}
		current = pair.Name
		if pair.DeletionTimestamp.IsZero() {
			err := client.IgnoreNotFound(r.Delete(ctx, pair, client.Preconditions{UID: &pair.UID}))
			if err != nil {
				return fmt.Errorf("delete pair %s: %w", pair.Name, err)
			}
			r.Events.Eventf(fleet, pair, corev1.EventTypeNormal, "RemovingPair", "Remove", "pair %s is drained and deleted",
				pair.Name)
		}
	}
	changed, err := r.update(ctx, fleet, wanted, existing)
	if err != nil {
		return err
	}
	if changed != "" {
		current = changed
	}
	if existing, err = fleetPairs(ctx, r.Client, fleet); err != nil {
		return err
	}
	r.report(fleet, wanted, existing, current)
	return nil
}

// fleetPairs returns the LockstepPairs of a fleet, sorted by name.
func fleetPairs(
	ctx context.Context, c client.Reader, fleet *v1alpha1.LockstepFleet,
) ([]*v1alpha1.LockstepPair, error) {
	var list v1alpha1.LockstepPairList
	err := c.List(ctx, &list, client.InNamespace(fleet.Namespace), client.MatchingLabels{fleetLabel: fleet.Name})
	if err != nil {
		return nil, fmt.Errorf("list pairs: %w", err)
	}
	var pairs []*v1alpha1.LockstepPair
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], fleet) {
			pairs = append(pairs, &list.Items[i])
		}
	}
	slices.SortFunc(pairs, func(a, b *v1alpha1.LockstepPair) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return pairs, nil
}

func pairsOf(fleet *v1alpha1.LockstepFleet) []v1alpha1.FleetPair {
	pairs := slices.Clone(fleet.Spec.Pairs)
	for i := range fleet.Spec.Count {
		pairs = append(pairs, v1alpha1.FleetPair{Name: string('a' + i)})
	}
	return pairs
}

// desired returns the LockstepPair of a pair of a fleet.
func desired(fleet *v1alpha1.LockstepFleet, p v1alpha1.FleetPair) (*v1alpha1.LockstepPair, error) {
	t := fleet.Spec.Template.DeepCopy()
	pair := &v1alpha1.LockstepPair{
		ObjectMeta: metav1.ObjectMeta{
			Name: fleet.Name + "-" + p.Name, Namespace: fleet.Namespace, Labels: map[string]string{},
			Annotations: map[string]string{},
		},
		Spec: t.Spec,
	}
	maps.Copy(pair.Labels, t.Labels)
	pair.Labels[fleetLabel], pair.Labels[objects.LabelManagedBy] = fleet.Name, objects.ManagedBy
	f := &pair.Spec.Fleet
	f.Pair, f.Prefix, f.Endpoints = p.Name, fleet.Spec.Directory.Prefix, fleet.Spec.Directory.Endpoints
	f.TokenSecret = fleet.Spec.Directory.TokenSecret
	if f.Prefix == "" {
		f.Prefix = fmt.Sprintf("/lockstep-fleets/%s/%s", fleet.Namespace, fleet.Name)
	}
	if len(f.Endpoints) == 0 {
		f.Endpoints = pair.Spec.Coordinator.Etcd.Endpoints
	}
	if len(p.Labels) > 0 {
		all := map[string]string{}
		maps.Copy(all, f.Labels)
		maps.Copy(all, p.Labels)
		f.Labels = all
	}
	if p.NodeSelector != nil {
		pair.Spec.NodeSelector = p.NodeSelector
	}
	text, err := json.Marshal(pair.Spec)
	if err != nil {
		return nil, fmt.Errorf("spec of pair %s: %w", pair.Name, err)
	}
	sum := sha256.Sum256(text)
	pair.Annotations[specAnnotation] = hex.EncodeToString(sum[:])
	return pair, nil
}

// update creates missing pairs, and changes the next pair with an older spec if this is safe. It returns the name of
// the pair that was changed, or of a changed pair that is not healthy yet.
func (r *FleetReconciler) update(
	ctx context.Context, fleet *v1alpha1.LockstepFleet, wanted, existing []*v1alpha1.LockstepPair,
) (string, error) {
	byName := map[string]*v1alpha1.LockstepPair{}
	for _, pair := range existing {
		byName[pair.Name] = pair
	}
	var old, changed []*v1alpha1.LockstepPair
	for _, pair := range wanted {
		is := byName[pair.Name]
		switch {
		case is == nil:
			if err := r.create(ctx, fleet, pair); err != nil {
				return pair.Name, err
			}
		case !is.DeletionTimestamp.IsZero(): // is created again after its deletion
		case is.Annotations[specAnnotation] == pair.Annotations[specAnnotation]:
			changed = append(changed, is)
		default:
			old = append(old, is)
		}
	}
	next := nextPair(old, changed)
	if next == nil {
		if i := slices.IndexFunc(changed, unhealthy); i >= 0 {
			return changed[i].Name, nil
		}
		return "", nil
	}
	i := slices.IndexFunc(wanted, func(p *v1alpha1.LockstepPair) bool { return p.Name == next.Name })
	pair := next.DeepCopy()
	pair.Spec = wanted[i].Spec
	pair.Annotations[specAnnotation] = wanted[i].Annotations[specAnnotation]
	maps.Copy(pair.Labels, wanted[i].Labels)
	if err := r.Update(ctx, pair); err != nil { // with the resource version of the decision
		return next.Name, fmt.Errorf("change pair %s: %w", next.Name, err)
	}
	r.Events.Eventf(fleet, next, corev1.EventTypeNormal, "UpdatingPair", "Update", "pair %s is changed", next.Name)
	return next.Name, nil
}

// nextPair returns the pair to change next, or nil. old are the pairs with an older spec, and changed the others. A
// healthy pair is changed only if all pairs are healthy. An unhealthy pair is changed first, if no pair with the new
// spec is unhealthy.
func nextPair(old, changed []*v1alpha1.LockstepPair) *v1alpha1.LockstepPair {
	if len(old) == 0 || slices.ContainsFunc(changed, unhealthy) {
		return nil
	}
	if i := slices.IndexFunc(old, unhealthy); i >= 0 {
		return old[i]
	}
	return old[0]
}

func unhealthy(p *v1alpha1.LockstepPair) bool { return !healthy(p) }

// healthy reports whether a pair serves and is in sync, and the operator has finished applying its spec.
func healthy(p *v1alpha1.LockstepPair) bool {
	c := p.Status.Conditions
	return p.Status.ObservedGeneration == p.Generation && meta.IsStatusConditionTrue(c, v1alpha1.ConditionReady) &&
		meta.IsStatusConditionTrue(c, v1alpha1.ConditionInSync) &&
		meta.IsStatusConditionFalse(c, v1alpha1.ConditionProgressing)
}

func (r *FleetReconciler) create(
	ctx context.Context, fleet *v1alpha1.LockstepFleet, pair *v1alpha1.LockstepPair,
) error {
	pair = pair.DeepCopy()
	if err := controllerutil.SetControllerReference(fleet, pair, r.Scheme()); err != nil {
		return fmt.Errorf("pair %s: %w", pair.Name, err)
	}
	err := r.Create(ctx, pair)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create pair %s: %w", pair.Name, err)
	}
	if err == nil {
		r.Events.Eventf(fleet, pair, corev1.EventTypeNormal, "CreatedPair", "Create", "pair %s was created", pair.Name)
	}
	return nil
}

// absent returns the names of the wanted pairs that do not exist.
func absent(wanted, existing []*v1alpha1.LockstepPair) (names []string) {
	for _, pair := range wanted {
		if !slices.ContainsFunc(existing, func(p *v1alpha1.LockstepPair) bool { return p.Name == pair.Name }) {
			names = append(names, pair.Name)
		}
	}
	return names
}

func (r *FleetReconciler) report(
	fleet *v1alpha1.LockstepFleet, wanted, existing []*v1alpha1.LockstepPair, current string,
) {
	hashes := map[string]string{}
	for _, pair := range wanted {
		hashes[pair.Name] = pair.Annotations[specAnnotation]
	}
	s := &fleet.Status
	s.ObservedGeneration, s.Pairs, s.UpdatedPairs, s.CurrentPair = fleet.Generation, int32(len(existing)), 0, current
	is := map[string][]string{} // the pairs that lack a condition, or have Degraded
	for _, pair := range existing {
		if hashes[pair.Name] == pair.Annotations[specAnnotation] && healthy(pair) {
			s.UpdatedPairs++
		}
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionInSync} {
			if !meta.IsStatusConditionTrue(pair.Status.Conditions, kind) {
				is[kind] = append(is[kind], pair.Name)
			}
		}
		if meta.IsStatusConditionTrue(pair.Status.Conditions, v1alpha1.ConditionDegraded) {
			is[v1alpha1.ConditionDegraded] = append(is[v1alpha1.ConditionDegraded], pair.Name)
		}
	}
	missing := absent(wanted, existing)
	condition := func(kind string, is bool, reason, message string) {
		if setCondition(&s.Conditions, fleet.Generation, kind, is, reason, message) {
			r.Events.Eventf(fleet, nil, corev1.EventTypeNormal, reason, "Reconcile", "%s is %t: %s", kind, is, message)
		}
	}
	all := func(kind, reason string) {
		if lacking := append(slices.Clone(missing), is[kind]...); len(lacking) == 0 {
			condition(kind, true, reason, "all pairs")
		} else {
			condition(kind, false, "Not"+reason, "false for "+strings.Join(lacking, ", "))
		}
	}
	all(v1alpha1.ConditionReady, "Ready")
	all(v1alpha1.ConditionInSync, "InSync")
	if degraded := is[v1alpha1.ConditionDegraded]; len(degraded) > 0 {
		condition(v1alpha1.ConditionDegraded, true, "PairDegraded", "true for "+strings.Join(degraded, ", "))
	} else {
		condition(v1alpha1.ConditionDegraded, false, "AsExpected", "no pair is degraded")
	}
	switch {
	case len(existing) > len(wanted):
		condition(v1alpha1.ConditionProgressing, true, "RemovingPair", "pair "+current+" is being drained")
	case int(s.UpdatedPairs) < len(wanted):
		condition(v1alpha1.ConditionProgressing, true, "UpdatingPairs",
			fmt.Sprintf("%d of %d pairs are ready with the current template", s.UpdatedPairs, len(wanted)))
	default:
		condition(v1alpha1.ConditionProgressing, false, "Complete", "all pairs have the current template")
	}
}
