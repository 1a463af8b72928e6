//! Measurements with all resources present.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use alustan_api::labels::{COMPONENT, Component, MANAGED_BY, MANAGER};
use alustan_api::names;
use alustan_api::run::RunKind;
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use parking_lot::Mutex;

use super::size::Member;
use super::{OWNER, Scale, patience};
use crate::fake_kubelet::Applies;
use crate::installed_operator::{InstalledOperator, Memory};
use crate::scene::until;
use crate::{Request, Sender};

/// Interval between scrapes of the metrics.
const SCRAPE: Duration = Duration::from_millis(500);
/// The start of the operator has ended if no resource was reconciled for this time.
const QUIET: f64 = 4.0;
/// Number of resources of a measurement of requests.
const COUNTED: usize = 20;
/// Number of concurrent runs while the operator is killed.
const ACTIVE: usize = 100;

/// Number of requests per resource, by sender and whether the request is a write.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Requests by sender and description, for example `patch secrets`.
    pub by_kind: BTreeMap<(Sender, String), usize>,
    /// Number of resources.
    pub resources: usize,
}

/// Returns `count / of`.
pub fn ratio(count: usize, of: usize) -> f64 {
    to_float(count) / to_float(of)
}

/// Returns the number of applies of `member`.
fn applies_of(member: Member, applies: &Applies) -> usize {
    let key = (member.namespace(), member.name());
    applies.get(&key).copied().unwrap_or_default()
}

fn to_float(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

impl Calls {
    pub(super) fn of(requests: &[Request], resources: usize) -> Self {
        let mut by_kind = BTreeMap::new();
        // Watches are not requests of one resource.
        for request in requests.iter().filter(|request| request.verb != "watch") {
            let kind = format!("{} {}", request.verb, request.resource);
            *by_kind.entry((request.sender, kind)).or_default() += 1;
        }
        Self { by_kind, resources }
    }

    /// Returns the number of requests of `sender` per resource.
    pub fn per_resource(&self, sender: Sender) -> f64 {
        let of_sender = self.by_kind.iter().filter(|((by, _), _)| *by == sender);
        ratio(of_sender.map(|(_, count)| count).sum(), self.resources)
    }
}

/// Start of the operator with all resources present, with an empty git cache.
#[derive(Clone, Debug)]
pub struct Start {
    /// Time from the start of the process until the Job of a resource exists that changed while the operator was down.
    pub first_decision: Duration,
    /// Time until the last of the first reconciles.
    pub last_evaluated: Duration,
    /// Number of reconciles until then.
    pub reconciles: f64,
    /// CPU time until then, in seconds.
    pub cpu_seconds: f64,
    /// Memory at the end of the start.
    pub memory: Memory,
    /// Requests of the operator until then, without watches.
    pub calls: Calls,
    /// Writes among these requests.
    pub writes: usize,
}

/// Window in which nothing changes.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Writes of the operator, for example `patch secrets stack-00001-run`.
    pub writes: Vec<String>,
    /// Reads of the operator, without watches.
    pub reads: Vec<String>,
    /// CPU time of the operator, in seconds.
    pub cpu_seconds: f64,
    /// Memory at the end.
    pub memory: Memory,
}

/// Commit that concerns many resources. All durations begin with the push.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Number of resources.
    pub concerned: usize,
    /// Durations until the first and the last build Job exist.
    pub builds: [Duration; 2],
    /// Durations until the first and the last run Job exist.
    pub runs: [Duration; 2],
    /// Duration until all are Ready.
    pub ready: Duration,
}

/// End of the process of the operator while runs are active.
#[derive(Clone, Debug)]
pub struct Crash {
    /// Number of active runs.
    pub active: usize,
    /// Duration from the end of the process until all are Ready.
    pub ready: Duration,
    /// Resources that were applied more than once.
    pub doubled: usize,
    /// Resources that were not applied.
    pub lost: usize,
}

impl Scale {
    /// Waits until no run is active.
    pub(super) async fn settle(&self) {
        let operator = InstalledOperator::running(&self.cluster).await;
        until("no active run", async || {
            let metrics = operator.metrics().await?;
            (metrics.sum("alustan_run_places_used", "") == 0.0).then_some(())
        })
        .await;
    }

    /// Stops the operator, completes the histories of the bulk, starts the operator and waits until it has evaluated all resources.
    pub async fn seed_histories(&mut self) {
        self.cluster.scale_operator(0).await;
        let members: Vec<_> = self.size.members().collect();
        self.write_histories(&members).await;
        self.cluster.scale_operator(1).await;
        let limit = patience(members.len());
        self.progress
            .until("ten runs in status", &members, limit, |seen| {
                seen.is_ready && seen.runs == 10
            })
            .await;
        self.evaluated().await;
    }

    /// Waits until the operator has reconciled all resources and then none for [`QUIET`] seconds. Returns the operator, the number of
    /// reconciles, and the end of the last one.
    async fn evaluated(&self) -> (InstalledOperator, f64, SystemTime) {
        let operator = InstalledOperator::running(&self.cluster).await;
        let mut tick = tokio::time::interval(SCRAPE);
        let wait = async {
            loop {
                tick.tick().await;
                let Some(metrics) = operator.metrics().await else {
                    continue;
                };
                let reconciles = metrics.sum("alustan_reconciles_total", "");
                let last = metrics.sum("alustan_last_reconcile_timestamp_seconds", "result=\"ok\"");
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .expect("a clock");
                if reconciles >= to_float(self.size.resources) && now.as_secs_f64() - last > QUIET {
                    return (reconciles, UNIX_EPOCH + Duration::from_secs_f64(last));
                }
            }
        };
        let limit = patience(self.size.resources);
        let (reconciles, last) = tokio::time::timeout(limit, wait)
            .await
            .unwrap_or_else(|_| panic!("waited {limit:?} for the evaluation of all resources"));
        (operator, reconciles, last)
    }

    /// Replaces the pod of the operator. While no operator runs, one resource is changed.
    pub async fn restart(&mut self) -> Start {
        let changed = self.size.bulk(1)[0];
        let before = self.progress.of(changed);
        self.cluster.scale_operator(0).await;
        self.change(&[changed], 1).await;
        self.log.skip();
        let jobs: Api<Job> = Api::namespaced(self.cluster.client.clone(), &changed.namespace());
        let name = names::run_job(&changed.name(), RunKind::Apply, before.run + 1);
        let decided = async {
            let exists = |job: Option<&Job>| job.is_some();
            let wait = await_condition(jobs, &name, exists);
            let limit = patience(self.size.resources);
            let found = tokio::time::timeout(limit, wait).await;
            found
                .unwrap_or_else(|_| panic!("waited {limit:?} for Job {name}"))
                .expect("a watch");
            SystemTime::now()
        };
        let evaluated = async {
            self.cluster.scale_operator(1).await;
            self.evaluated().await
        };
        let (first, (operator, reconciles, last)) = tokio::join!(decided, evaluated);
        let started = operator.started_at();
        let since = |time: SystemTime| time.duration_since(started).unwrap_or_default();
        let mut requests = self.log.requests();
        requests.retain(|request| request.sender == Sender::Operator);
        let result = Start {
            first_decision: since(first),
            last_evaluated: since(last),
            reconciles,
            cpu_seconds: operator.cpu_seconds(),
            memory: operator.memory(),
            calls: Calls::of(&requests, self.size.resources),
            writes: requests.iter().filter(|request| request.is_write()).count(),
        };
        self.progress
            .until("Ready", &[changed], patience(1), |seen| {
                seen.is_ready && seen.run > before.run
            })
            .await;
        self.settle().await;
        result
    }

    /// Waits for `window` while nothing changes.
    pub async fn idle(&mut self, window: Duration) -> Idle {
        // Events that the operator publishes in the background.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let operator = InstalledOperator::running(&self.cluster).await;
        let before = operator.cpu_seconds();
        self.log.skip();
        tokio::time::sleep(window).await;
        let requests = self.log.requests();
        let described = |is_wanted: &dyn Fn(&Request) -> bool| {
            let wanted = requests.iter().filter(|request| is_wanted(request));
            wanted
                .map(|request| format!("{} {} {}", request.verb, request.resource, request.name))
                .collect()
        };
        Idle {
            writes: described(&Request::is_write),
            reads: described(&|request| !request.is_write() && request.verb != "watch"),
            cpu_seconds: operator.cpu_seconds() - before,
            memory: operator.memory(),
        }
    }

    /// Pushes a commit that changes the modules of many resources.
    pub async fn commit(&mut self) -> Commit {
        let concerned: Vec<Member> = self
            .size
            .members()
            .filter(|member| {
                member
                    .module()
                    .is_some_and(|module| module < self.size.concerned())
            })
            .collect();
        let created = JobTimes::watch(self).await;
        let start = Instant::now();
        let commit = self.commit_monorepo(1).await;
        let limit = patience(self.size.resources);
        self.progress
            .until("the commit", &concerned, limit, |seen| {
                seen.is_ready && seen.revision == commit
            })
            .await;
        let ready = start.elapsed();
        self.settle().await;
        let (builds, runs) = created.since(start);
        Commit {
            concerned: concerned.len(),
            builds,
            runs,
            ready,
        }
    }

    /// Counts the requests of applies after a change of a variable to `value`, without builds.
    pub async fn applies(&mut self, value: usize) -> Calls {
        let members = self.size.bulk(COUNTED);
        let before: Vec<_> = members
            .iter()
            .map(|member| self.progress.of(*member))
            .collect();
        self.log.skip();
        self.change(&members, value).await;
        self.changed(&members, &before).await;
        Calls::of(&self.log.requests(), members.len())
    }

    /// Waits until the operator deletes no more finished Jobs.
    pub async fn retained(&self) {
        let jobs: Api<Job> = Api::all(self.cluster.client.clone());
        let before = Mutex::new(None);
        until("deletions of finished Jobs to end", async || {
            // Longer than the interval at which the operator marks Jobs.
            tokio::time::sleep(Duration::from_secs(6)).await;
            // Jobs of builds have a time to live, so their deletions do not end.
            let runs =
                ListParams::default().labels(&format!("{COMPONENT}={}", Component::Run.as_str()));
            let list = jobs.list_metadata(&runs).await;
            let count = Some(list.expect("list Jobs").items.len());
            (std::mem::replace(&mut *before.lock(), count) == count).then_some(())
        })
        .await;
    }

    /// Waits until `members` are Ready after a run that started after `before`, and until no run is active.
    async fn changed(&self, members: &[Member], before: &[super::progress::Seen]) {
        for (member, before) in members.iter().zip(before) {
            self.progress
                .until("Ready", &[*member], patience(members.len()), |seen| {
                    seen.is_ready && seen.generation > before.generation && seen.run > before.run
                })
                .await;
        }
        self.settle().await;
    }

    /// Ends the process of the operator by `end` while many runs are active.
    pub async fn crash(&mut self, generation: usize, end: impl AsyncFnOnce()) -> Crash {
        let members = self.size.bulk(ACTIVE);
        let before: Vec<_> = members
            .iter()
            .map(|member| self.progress.of(*member))
            .collect();
        let applied = self.kubelet.applies();
        self.kubelet.hold(true);
        self.change(&members, generation).await;
        until("active runs", async || {
            (self.kubelet.held() == members.len()).then_some(())
        })
        .await;
        end().await;
        let start = Instant::now();
        self.kubelet.hold(false);
        self.changed(&members, &before).await;
        let ready = start.elapsed();
        let now = self.kubelet.applies();
        let new: Vec<usize> = members
            .iter()
            .map(|member| applies_of(*member, &now) - applies_of(*member, &applied))
            .collect();
        Crash {
            active: members.len(),
            ready,
            doubled: new.iter().filter(|count| **count > 1).count(),
            lost: new.iter().filter(|count| **count == 0).count(),
        }
    }

    /// Kills the process of the operator, as an out-of-memory kill does. The kubelet restarts the container.
    pub async fn crash_with_restart(&mut self) -> Crash {
        let cluster = self.cluster.clone();
        self.crash(4, async || cluster.kill_controller().await)
            .await
    }

    /// Deletes the pod of the leader while a second replica runs.
    pub async fn crash_with_failover(&mut self) -> Crash {
        let cluster = self.cluster.clone();
        cluster.scale_operator(2).await;
        let end = async || {
            let leader = cluster.lease_holder(super::SYSTEM, "alustan").await;
            let pod = leader.expect("a leader");
            let delete = ["delete", "pod", "-n", super::SYSTEM, "--force", &pod];
            cluster.run("kubectl", &delete).await;
        };
        let crash = self.crash(5, end).await;
        self.cluster.scale_operator(1).await;
        crash
    }

    /// Counts the objects of the operator in the namespaces of the harness, by kind.
    pub async fn objects(&self) -> BTreeMap<&'static str, usize> {
        const KINDS: [(&str, &str, &str); 11] = [
            ("alustan.io", "v1alpha1", "Terraform"),
            ("", "v1", "Secret"),
            ("", "v1", "ConfigMap"),
            ("", "v1", "ServiceAccount"),
            ("", "v1", "PersistentVolumeClaim"),
            ("", "v1", "Pod"),
            ("batch", "v1", "Job"),
            ("policy", "v1", "PodDisruptionBudget"),
            ("rbac.authorization.k8s.io", "v1", "Role"),
            ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
            ("events.k8s.io", "v1", "Event"),
        ];
        let mut counts = BTreeMap::new();
        for (group, version, kind) in KINDS {
            let kind_of_api = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::all_with(self.cluster.client.clone(), &kind_of_api);
            let list = if matches!(kind, "Terraform" | "Event") {
                ListParams::default()
            } else {
                ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"))
            };
            let objects = api.list_metadata(&list).await.expect("a list");
            let prefix = format!("{OWNER}-");
            let ours = objects.iter().filter(|object| {
                object
                    .namespace()
                    .is_some_and(|name| name.starts_with(&prefix))
            });
            counts.insert(kind, ours.count());
        }
        counts
    }

    /// Returns the number of resources that were not applied exactly `count` times on the fake node.
    pub fn applied_otherwise(&self, count: usize) -> usize {
        let applies = self.kubelet.applies();
        let bulk = self.size.members().filter(|member| !member.is_real());
        bulk.filter(|member| applies_of(*member, &applies) != count)
            .count()
    }

    /// Returns the number of applies on the fake node.
    pub fn apply_count(&self) -> usize {
        self.kubelet.apply_count()
    }
}

/// Times at which Jobs were created.
struct JobTimes {
    jobs: std::sync::Arc<parking_lot::Mutex<BTreeMap<String, (bool, Instant)>>>,
    task: tokio::task::AbortHandle,
}

impl JobTimes {
    /// Starts to watch Jobs. Returns when all existing Jobs are known.
    async fn watch(scale: &Scale) -> Self {
        let jobs = std::sync::Arc::<parking_lot::Mutex<BTreeMap<_, _>>>::default();
        let api: Api<PartialObjectMeta<Job>> = Api::all(scale.cluster.client.clone());
        let config = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let (listed, is_listed) = tokio::sync::oneshot::channel();
        let times = jobs.clone();
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(api, config).default_backoff());
            let mut listed = Some(listed);
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Apply(job) | watcher::Event::InitApply(job)) => {
                        let is_build = job
                            .labels()
                            .get(COMPONENT)
                            .is_some_and(|component| component == Component::Build.as_str());
                        let uid = job.uid().unwrap_or_default();
                        let mut times = times.lock();
                        times
                            .entry(uid)
                            .or_insert_with(|| (is_build, Instant::now()));
                    }
                    Ok(watcher::Event::InitDone) => {
                        if let Some(listed) = listed.take() {
                            // Ignores an error: the receiver is dropped if the measurement has failed.
                            let _ = listed.send(());
                        }
                    }
                    Ok(watcher::Event::Delete(_) | watcher::Event::Init) | Err(_) => {}
                }
            }
        });
        is_listed.await.expect("a list of Jobs");
        Self {
            jobs,
            task: task.abort_handle(),
        }
    }

    /// Returns the times of the first and the last build Job and run Job after `start`.
    fn since(self, start: Instant) -> ([Duration; 2], [Duration; 2]) {
        self.task.abort();
        let jobs = self.jobs.lock();
        let ends = |wanted: bool| {
            let times = jobs
                .values()
                .filter(|(is_build, time)| *is_build == wanted && *time >= start);
            let times: Vec<_> = times.map(|(_, time)| *time - start).collect();
            [
                times.iter().min().copied().unwrap_or_default(),
                times.iter().max().copied().unwrap_or_default(),
            ]
        };
        (ends(true), ends(false))
    }
}
