// SPDX-License-Identifier: Apache-2.0

package access

import (
	"strings"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Need describes the requirements of a method for its caller.
type Need struct {
	Right           Right // 0: any right is sufficient
	PerQueue        bool  // Right applies to the queues in the request; the service checks each of them
	Unauthenticated bool  // requires neither authentication nor a right
	Site            bool  // also permitted for a node of the other site
	Fleet           bool  // also permitted for a node of another pair of the fleet
	Audited         bool  // all calls are logged to the audit log, not only denied ones
}

func needPeer() Need             { return Need{Right: Peer} }
func needMany() Need             { return Need{} } // any right is sufficient
func onQueues(r Right) Need      { return Need{Right: r, PerQueue: true} }
func manages() Need              { return Need{Right: Manage, PerQueue: true, Audited: true} }
func operates(audited bool) Need { return Need{Right: Operate, Audited: audited} }

// methods contains the requirements of all RPCs of a node, except for reflection (see NeedOf). Calls of other methods
// are denied.
var methods = map[string]Need{ //nolint:gochecknoglobals // a table
	pb.QueueService_CreateQueue_FullMethodName:        manages(),
	pb.QueueService_AlterQueue_FullMethodName:         manages(),
	pb.QueueService_DeleteQueue_FullMethodName:        manages(),
	pb.QueueService_PurgeQueue_FullMethodName:         manages(),
	pb.QueueService_GetQueue_FullMethodName:           onQueues(Browse),
	pb.QueueService_ListQueues_FullMethodName:         onQueues(Browse),
	pb.QueueService_GetHistory_FullMethodName:         onQueues(Browse),
	pb.QueueService_CreateSubscription_FullMethodName: manages(),
	pb.QueueService_AlterSubscription_FullMethodName:  manages(),
	pb.QueueService_DeleteSubscription_FullMethodName: manages(),
	pb.QueueService_Publish_FullMethodName:            onQueues(Publish),
	pb.QueueService_PublishStream_FullMethodName:      onQueues(Publish),
	pb.QueueService_Commit_FullMethodName:             onQueues(Publish | Consume),
	pb.QueueService_Consume_FullMethodName:            onQueues(Consume),
	pb.QueueService_ReplayDeadLetters_FullMethodName:  manages(),
	pb.QueueService_MoveMessages_FullMethodName:       manages(),
	pb.QueueService_RemoveMessages_FullMethodName:     manages(),
	pb.QueueService_Browse_FullMethodName:             onQueues(Browse),
	pb.QueueService_SeekSubscription_FullMethodName:   manages(),
	pb.QueueService_SetForwards_FullMethodName:        manages(),
	pb.QueueService_PauseQueue_FullMethodName:         manages(),
	pb.QueueService_ResumeQueue_FullMethodName:        manages(),
	pb.QueueService_PutPolicy_FullMethodName:          operates(true),
	pb.QueueService_DeletePolicy_FullMethodName:       operates(true),
	pb.QueueService_ListPolicies_FullMethodName:       needMany(),
	pb.QueueService_Prepare_FullMethodName:            onQueues(Publish | Consume),
	pb.QueueService_CommitPrepared_FullMethodName:     onQueues(Publish | Consume),
	pb.QueueService_RollbackPrepared_FullMethodName:   onQueues(Publish | Consume),
	pb.QueueService_ListPrepared_FullMethodName:       operates(false),

	pb.ScheduleService_PutSchedule_FullMethodName:       manages(),
	pb.ScheduleService_DeleteSchedule_FullMethodName:    manages(),
	pb.ScheduleService_SetSchedulePaused_FullMethodName: manages(),
	pb.ScheduleService_RunSchedule_FullMethodName:       manages(),
	pb.ScheduleService_GetSchedule_FullMethodName:       onQueues(Browse),
	pb.ScheduleService_ListSchedules_FullMethodName:     onQueues(Browse),

	pb.AdminService_GetStatus_FullMethodName:       needMany(),
	pb.AdminService_WatchStatus_FullMethodName:     needMany(),
	pb.AdminService_Switchover_FullMethodName:      operates(true),
	pb.AdminService_SetPaused_FullMethodName:       operates(true),
	pb.AdminService_Checkpoint_FullMethodName:      operates(true),
	pb.AdminService_Check_FullMethodName:           operates(true),
	pb.AdminService_GetDigest_FullMethodName:       operates(false),
	pb.AdminService_Verify_FullMethodName:          operates(true),
	pb.AdminService_GetQueueDigests_FullMethodName: operates(false),
	pb.AdminService_Scrub_FullMethodName:           operates(true),
	pb.AdminService_DropDamaged_FullMethodName:     operates(true),
	pb.AdminService_AdoptRecord_FullMethodName:     operates(true),
	pb.AdminService_ForceFailover_FullMethodName:   operates(true),
	pb.AdminService_CopyHistory_FullMethodName:     operates(false),

	pb.SiteService_GetSite_FullMethodName:        {Right: Operate, Site: true},
	pb.SiteService_SwitchSite_FullMethodName:     operates(true),
	pb.SiteService_PromoteSite_FullMethodName:    operates(true),
	pb.SiteService_DemoteSite_FullMethodName:     operates(true),
	pb.SiteService_VerifySites_FullMethodName:    {Right: Operate, Site: true, Audited: true},
	pb.SiteService_PullLog_FullMethodName:        {Right: Operate, Site: true},
	pb.SiteService_PullSnapshot_FullMethodName:   {Right: Operate, Site: true, Audited: true},
	pb.SiteService_ReportPosition_FullMethodName: {Right: Operate, Site: true},
	pb.SiteService_Takeover_FullMethodName:       {Right: Operate, Site: true, Audited: true},
	pb.SiteService_CancelTakeover_FullMethodName: {Right: Operate, Site: true, Audited: true},
	pb.SiteService_GetSiteDigests_FullMethodName: {Right: Operate, Site: true},

	pb.FleetService_GetFleet_FullMethodName:            operates(false),
	pb.FleetService_ListPlacements_FullMethodName:      operates(false),
	pb.FleetService_PutPlacementRule_FullMethodName:    operates(true),
	pb.FleetService_DeletePlacementRule_FullMethodName: operates(true),
	pb.FleetService_SetPairState_FullMethodName:        operates(true),
	pb.FleetService_RebuildDirectory_FullMethodName:    operates(true),
	pb.FleetService_LeaveFleet_FullMethodName:          operates(true),
	pb.FleetService_ForgetPair_FullMethodName:          operates(true),
	pb.FleetService_MoveQueues_FullMethodName:          operates(true),
	pb.FleetService_ListMoves_FullMethodName:           operates(false),
	pb.FleetService_CancelMove_FullMethodName:          operates(true),
	pb.FleetService_GetMoveSource_FullMethodName:       {Right: Operate, Fleet: true},
	pb.FleetService_PullMessages_FullMethodName:        {Right: Operate, Fleet: true, Audited: true},
	pb.FleetService_DigestMessages_FullMethodName:      {Right: Operate, Fleet: true},
	pb.FleetService_PrepareFence_FullMethodName:        {Right: Operate, Fleet: true},
	pb.FleetService_PullState_FullMethodName:           {Right: Operate, Fleet: true},
	pb.FleetService_FenceQueues_FullMethodName:         {Right: Operate, Fleet: true, Audited: true},
	pb.FleetService_GetMoveDigests_FullMethodName:      {Right: Operate, Fleet: true},
	pb.FleetService_UnfenceQueues_FullMethodName:       {Right: Operate, Fleet: true, Audited: true},
	pb.FleetService_DropMoved_FullMethodName:           {Right: Operate, Fleet: true, Audited: true},

	pb.ConnectionService_ListConnections_FullMethodName: operates(false),
	pb.ConnectionService_CloseConnection_FullMethodName: operates(true),

	pb.AuditService_TailAudit_FullMethodName: {Right: Audit, Audited: true},

	pb.MaintenanceService_GetSettings_FullMethodName:    operates(false),
	pb.MaintenanceService_UpdateSettings_FullMethodName: operates(true),
	pb.MaintenanceService_ListSettings_FullMethodName:   operates(false),
	pb.MaintenanceService_ChangeSettings_FullMethodName: operates(true),
	pb.MaintenanceService_Scan_FullMethodName:           operates(true),
	pb.MaintenanceService_Rewrite_FullMethodName:        operates(true),
	pb.MaintenanceService_Shrink_FullMethodName:         operates(true),
	pb.MaintenanceService_Backup_FullMethodName:         operates(true),
	pb.MaintenanceService_ListBackups_FullMethodName:    operates(false),
	pb.MaintenanceService_VerifyBackup_FullMethodName:   operates(true),
	pb.MaintenanceService_GetPageMap_FullMethodName:     operates(false),
	pb.MaintenanceService_DropOld_FullMethodName:        operates(true),
	pb.MaintenanceService_FlushArchive_FullMethodName:   operates(true),
	pb.MaintenanceService_StartPlan_FullMethodName:      operates(true),
	pb.MaintenanceService_WatchPlan_FullMethodName:      operates(false),
	pb.MaintenanceService_CancelPlan_FullMethodName:     operates(true),
	pb.MaintenanceService_ListJobs_FullMethodName:       operates(false),
	pb.MaintenanceService_PutJob_FullMethodName:         operates(true),
	pb.MaintenanceService_DeleteJob_FullMethodName:      operates(true),
	pb.MaintenanceService_RunJob_FullMethodName:         operates(true),
	pb.MaintenanceService_RestartNode_FullMethodName:    operates(true),
	pb.MaintenanceService_ReportNode_FullMethodName:     operates(false),

	pb.AccessService_WhoAmI_FullMethodName:      {Unauthenticated: true},
	pb.AccessService_ListAccess_FullMethodName:  operates(false),
	pb.AccessService_TestAccess_FullMethodName:  operates(false),
	pb.AccessService_Grant_FullMethodName:       operates(true),
	pb.AccessService_Revoke_FullMethodName:      operates(true),
	pb.AccessService_PutRole_FullMethodName:     operates(true),
	pb.AccessService_DeleteRole_FullMethodName:  operates(true),
	pb.AccessService_CreateToken_FullMethodName: operates(true),
	pb.AccessService_RevokeToken_FullMethodName: operates(true),
	pb.AccessService_PutQuota_FullMethodName:    operates(true),
	pb.AccessService_DeleteQuota_FullMethodName: operates(true),

	pb.ReplicationService_Replicate_FullMethodName:     needPeer(),
	pb.ReplicationService_FetchSnapshot_FullMethodName: needPeer(),
	pb.ReplicationService_FetchMessages_FullMethodName: needPeer(),
	pb.ReplicationService_Handshake_FullMethodName:     needPeer(),

	healthpb.Health_Check_FullMethodName: {Unauthenticated: true},
	healthpb.Health_List_FullMethodName:  {Unauthenticated: true},
	healthpb.Health_Watch_FullMethodName: {Unauthenticated: true},
}

const reflectionPrefix = "/grpc.reflection."

// NeedOf returns the requirements of the method with the given full name. It returns false for an unknown method. The
// methods of gRPC reflection require any right.
func NeedOf(method string) (Need, bool) {
	if strings.HasPrefix(method, reflectionPrefix) {
		return needMany(), true
	}
	need, ok := methods[method]
	return need, ok
}
