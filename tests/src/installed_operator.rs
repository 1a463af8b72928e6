//! Process of the installed operator: metrics, memory, CPU time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use axum::http::Request;

use crate::Cluster;

/// Namespace of the operator.
pub(crate) const NAMESPACE: &str = "alustan-system";
/// Selector of the pods of the operator.
pub(crate) const SELECTOR: &str =
    "app.kubernetes.io/name=alustan,app.kubernetes.io/component=controller";
/// Clock ticks per second in `/proc/PID/stat`: constant in the interface of Linux.
const TICKS: f64 = 100.0;

/// Process of the installed operator.
pub(crate) struct InstalledOperator {
    cluster: Cluster,
    pid: String,
    /// Name of the pod.
    pod: String,
}

/// Memory of the container of the operator, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Memory in use without the inactive page cache: the working set of `kubectl top`.
    pub working_set: u64,
    /// Anonymous memory: heap and stacks.
    pub anonymous: u64,
    /// Highest memory in use, with the page cache.
    pub peak: u64,
}

/// Values of the metrics at one scrape.
pub(crate) struct Metrics(String);

impl InstalledOperator {
    /// Waits until a pod of the operator runs.
    pub(crate) async fn running(cluster: &Cluster) -> Self {
        let (pod, pid) = cluster.process(NAMESPACE, SELECTOR).await;
        Self {
            cluster: cluster.clone(),
            pid,
            pod,
        }
    }

    /// Returns the metrics; `None` while the operator does not serve them.
    pub(crate) async fn metrics(&self) -> Option<Metrics> {
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy/metrics",
            self.pod
        );
        let request = Request::get(path).body(Vec::new()).expect("a request");
        let text = self.cluster.client.request_text(request).await.ok()?;
        Some(Metrics(text))
    }

    /// Returns the start time of the process.
    pub(crate) fn started_at(&self) -> SystemTime {
        let stat = read(format!("/proc/{}/stat", self.pid));
        // The name of the program, in parentheses, may contain spaces. Field 22 is the start time since boot.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks: f64 = field(fields, 19);
        let uptime: f64 = field(&read("/proc/uptime"), 0);
        SystemTime::now() - Duration::from_secs_f64((uptime - ticks / TICKS).max(0.0))
    }

    /// Returns the memory of the container.
    pub(crate) fn memory(&self) -> Memory {
        let (folder, is_v2) = self.cgroup("memory");
        let number = |file: &str| -> u64 { field(&read(folder.join(file)), 0) };
        let stat = read(folder.join("memory.stat"));
        let stat: BTreeMap<&str, u64> = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect();
        let [used, peak, inactive, anonymous] = if is_v2 {
            ["memory.current", "memory.peak", "inactive_file", "anon"]
        } else {
            [
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                "total_inactive_file",
                "total_rss",
            ]
        };
        Memory {
            working_set: number(used).saturating_sub(stat[inactive]),
            anonymous: stat[anonymous],
            peak: number(peak),
        }
    }

    /// Returns the CPU time of the container, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let (folder, is_v2) = self.cgroup("cpuacct");
        if is_v2 {
            let microseconds: f64 = field(&read(folder.join("cpu.stat")), 1);
            return microseconds / 1e6;
        }
        let nanoseconds: f64 = field(&read(folder.join("cpuacct.usage")), 0);
        nanoseconds / 1e9
    }

    /// Returns the folder of the cgroup of the process, and whether it is of version 2.
    fn cgroup(&self, controller: &str) -> (PathBuf, bool) {
        let groups = read(format!("/proc/{}/cgroup", self.pid));
        let groups: Vec<(&str, &str)> = groups
            .lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'))
            .collect();
        let of_v1 = groups
            .iter()
            .find(|(controllers, _)| controllers.split(',').any(|name| name == controller));
        if let Some((_, path)) = of_v1 {
            return (
                PathBuf::from(format!("/sys/fs/cgroup/{controller}{path}")),
                false,
            );
        }
        let (_, path) = groups.first().expect("a cgroup");
        (PathBuf::from(format!("/sys/fs/cgroup{path}")), true)
    }
}

fn read(file: impl Into<PathBuf>) -> String {
    let file = file.into();
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the number in field `index` of `text`.
fn field<T: std::str::FromStr>(text: &str, index: usize) -> T {
    let field = text.split_whitespace().nth(index);
    field
        .and_then(|field| field.parse().ok())
        .unwrap_or_else(|| panic!("no number in field {index} of {text:?}"))
}

impl Metrics {
    /// Returns the sum of all samples of the metric `name`, optionally of those with `label` only, for example `result="ok"`.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        self.0
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}
