// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// backupsPage shows the save-sets of the nodes.
func backupsPage() Page {
	return Page{
		Path: "/backups", Title: "Backups", Right: "operate", Template: "backups", Hidden: true, Under: "/store",
		Load: loadBackups,
		Actions: []Action{{
			Name: "start", Title: "Back up", Right: "operate", Dialog: "start", Load: loadNodeName, Do: doBackup,
		}},
	}
}

// backupsView is what the page Backups shows.
type backupsView struct {
	Path  string
	Nodes []*nodeSets
}

// nodeSets are the save-sets of a node.
type nodeSets struct {
	*nodeView

	Sets    []*pb.SaveSet
	Failure *failure
	NoPath  bool // the node does not know where
}

func loadBackups(ctx context.Context, v *View) (any, error) {
	settings, err := pb.NewMaintenanceServiceClient(v.Own()).GetSettings(ctx, &pb.GetSettingsRequest{})
	if err != nil {
		return nil, err
	}
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	d := &backupsView{Path: settings.GetSettings().GetBackupPath()}
	for _, n := range nodes {
		one := &nodeSets{nodeView: n}
		d.Nodes = append(d.Nodes, one)
		cc, err := v.Node(ctx, n.Info.GetNodeId())
		var r *pb.ListBackupsResponse
		if err == nil {
			r, err = pb.NewMaintenanceServiceClient(cc).ListBackups(ctx, &pb.ListBackupsRequest{})
		}
		if err != nil {
			f := describe(err)
			one.Failure, one.NoPath = &f, f.Reason == "NO_BACKUP_PATH"
			continue
		}
		one.Sets = r.GetSets()
	}
	return d, nil
}

func doBackup(ctx context.Context, v *View) (Done, error) {
	if _, err := v.maintenance(ctx); err != nil {
		return Done{}, err
	}
	err := v.begin(ctx, task{Title: "Backup", Node: v.nodeName(ctx), Link: "/backups"}, func(
		ctx context.Context, v *View, tell func(*pb.Progress),
	) (string, error) {
		m, err := v.maintenance(ctx)
		if err != nil {
			return "", err
		}
		in, err := m.Backup(ctx, &pb.BackupRequest{FullSpeed: v.Get("full_speed") != ""})
		if err != nil {
			return "", err
		}
		var set *pb.SaveSet
		err = stream(in, func(r *pb.BackupResponse) bool {
			tell(r.GetProgress())
			set = r.GetSet()
			return set != nil
		})
		if err != nil {
			return "", err
		}
		return "Save-set " + set.GetName() + ", " + formatBytes(set.GetBytes()) + ".", nil
	})
	return Done{Message: "The backup has begun.", Goto: "/store"}, err
}
