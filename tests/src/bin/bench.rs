//! `make bench` compares the operator with plain Terraform on the dev cluster. Durations are in milliseconds, as seen by a client that
//! watches the objects. Each ratio is relative to the floor: a hand-written Job that runs `init`, `plan` and `apply` in the same runner image.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "a tool"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use alustan_tests::{AuditLog, Crowd, Scene, scene};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

const MODULE: &str = Crowd::MODULE;
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() {
    scene("bench", |scene| async move {
        let bench = Bench::new(&scene).await;
        bench.run().await;
    })
    .await;
}

struct Bench<'a> {
    scene: &'a Scene,
    crowd: Crowd<'a>,
}

impl<'a> Bench<'a> {
    async fn new(scene: &'a Scene) -> Self {
        Self {
            scene,
            crowd: Crowd::new(scene).await,
        }
    }

    async fn run(&self) {
        let built = self.with_build("Kaniko", "built").await;
        let appended = self.with_build("Append", "appended").await;
        let image = self.crowd.image("built0").await;
        let floor = median(
            self.rounds(|n| self.crowd.bare_job(&image, Crowd::APPLY, n))
                .await,
        );
        let present = self.rounds(|n| self.apply(n)).await;
        let mut report = Report { floor };
        println!("{:<48} {:>8} {:>8}", "median of 5", "ms", "ratio");
        report.line("bare init+plan+apply as a Job (the floor)", floor);
        report.line(
            "apply -> Ready, image present",
            median(part(&present, |round| round.ready)),
        );
        report.line(
            "  event -> Job created",
            median(part(&present, |round| round.job)),
        );
        report.line(
            "  report in the record -> Ready",
            median(part(&present, |round| round.report_to_ready)),
        );
        report.line(
            "  delete -> gone",
            median(part(&present, |round| round.delete)),
        );
        report.line("apply -> Ready, build by Kaniko", median(built));
        report.line("apply -> Ready, build by Append", median(appended));
        let (commits, pushed) = self.commits("built0").await;
        report.line("commit to the module -> Ready, by Kaniko", median(commits));
        let (commits, appended) = self.commits("appended0").await;
        report.line("commit to the module -> Ready, by Append", median(commits));
        report.line(
            "push that a git server tells of -> Job of its build",
            median(self.pushes().await),
        );
        report.line("look for drift, no change", median(self.drift().await));
        for (kind, pushed) in [("Kaniko", pushed), ("Append", appended)] {
            let line = format!("bytes pushed for a commit to the module, {kind}");
            println!("{line:<48} {pushed:>8}");
        }
        println!(
            "{:<48} {:>8}",
            "writes over five idle intervals",
            self.idle().await
        );
        println!("API calls of one apply: {}", calls(&self.calls().await));
        self.at_once(&image).await;
    }

    /// Prints the durations of concurrent applies, by phase, and of as many Jobs without the operator.
    async fn at_once(&self, image: &str) {
        let nothing = self.crowd.bare_jobs(image, Crowd::NOTHING).await;
        let bare = self.crowd.bare_jobs(image, Crowd::APPLY).await;
        let applies = self.crowd.applies().await;
        let title = format!("{} at once", Crowd::SIZE);
        println!("{title:<48} {:>8} {:>8} {:>8}", "first", "median", "last");
        spread("bare Jobs that run `true`", &nothing);
        spread("bare Jobs that run init, plan and apply", &bare);
        spread("resources, apply -> Ready", &applies.ready);
        let last = |times: &[Duration]| times.iter().max().map_or(0.0, Duration::as_secs_f64);
        let ratio = last(&applies.ready) / last(&bare);
        println!("{:<66} {ratio:>8.2}", "resources : bare Jobs");
        for (phase, times) in applies.phases {
            spread(&format!("  {phase}"), &times);
        }
    }

    async fn rounds<T, F: Future<Output = T>>(&self, round: impl Fn(usize) -> F) -> Vec<T> {
        let mut results = Vec::new();
        for n in 0..ROUNDS {
            results.push(round(n).await);
        }
        results
    }

    /// Measures the time from apply to Ready with a build by the builder `kind`. Each round uses a different module.
    async fn with_build(&self, kind: &str, prefix: &str) -> Vec<Duration> {
        let mut times = Vec::new();
        for n in 0..ROUNDS {
            let repository = format!("{prefix}{n}");
            let module = format!("{MODULE}# {prefix} {n}\n");
            self.scene
                .commit(&repository, &[("main.tf", &module)])
                .await;
            let mut tf = self.crowd.resource(&repository, &repository);
            tf["spec"]["containerRegistry"]["builder"] = json!({"kind": kind});
            let start = Instant::now();
            self.scene.apply(&tf).await;
            self.scene.ready(&repository).await;
            times.push(start.elapsed());
            if n > 0 {
                self.scene
                    .delete(&repository, &DeleteParams::default())
                    .await;
            }
        }
        self.scene
            .commit("bench", &[("main.tf", &format!("{MODULE}# built 0\n"))])
            .await;
        times
    }

    /// Measures a new resource without a build: its image is in the registry.
    async fn apply(&self, n: usize) -> Round {
        let name = format!("present{n}");
        let tf = self.crowd.resource(&name, "bench");
        let start = Instant::now();
        let (job, reported, ready) = tokio::join!(
            self.until_job(&name, start),
            self.until_reported(&name, start),
            async {
                self.scene.apply(&tf).await;
                self.scene.ready(&name).await;
                start.elapsed()
            }
        );
        let start = Instant::now();
        self.scene.delete(&name, &DeleteParams::default()).await;
        Round {
            ready,
            job,
            report_to_ready: ready.saturating_sub(reported),
            delete: start.elapsed(),
        }
    }

    async fn until_job(&self, name: &str, start: Instant) -> Duration {
        let exists = |job: Option<&Job>| job.is_some();
        await_condition(self.scene.api::<Job>(), &format!("{name}-apply-1"), exists)
            .await
            .unwrap();
        start.elapsed()
    }

    async fn until_reported(&self, name: &str, start: Instant) -> Duration {
        let reported = |secret: Option<&Secret>| {
            let data = secret.and_then(|secret| secret.data.as_ref());
            data.is_some_and(|data| data.contains_key("report"))
        };
        let name = format!("{name}-report");
        await_condition(self.scene.api::<Secret>(), &name, reported)
            .await
            .unwrap();
        start.elapsed()
    }

    /// Measures the time from a commit to the repository `name` until the commit is applied. No other repository changes. Returns the
    /// durations, and the number of bytes that the last build pushed to the registry.
    async fn commits(&self, name: &str) -> (Vec<Duration>, u64) {
        let mut times = Vec::new();
        let mut pushed = 0;
        for n in 0..ROUNDS {
            let before = self.layers(name).await;
            let start = Instant::now();
            let commit = self
                .scene
                .commit(
                    name,
                    &[("main.tf", &format!("{MODULE}# {name} commit {n}\n"))],
                )
                .await;
            self.scene
                .wait(name, "the commit applied", |tf| {
                    let applied = tf
                        .status
                        .as_ref()
                        .and_then(|status| status.last_applied.as_ref());
                    applied.is_some_and(|applied| applied.revision.as_ref() == Some(&commit))
                })
                .await;
            times.push(start.elapsed());
            let after = self.layers(name).await;
            pushed = after
                .iter()
                .filter(|(digest, _)| !before.contains_key(*digest))
                .map(|(_, size)| size)
                .sum();
        }
        (times, pushed)
    }

    /// Measures the time from a webhook request about a push to the creation of the build Job. The time includes the start of the shell
    /// script that sends the request with openssl and curl.
    async fn pushes(&self) -> Vec<Duration> {
        let mut tf = self.crowd.resource("told", "told");
        tf["spec"]["gitRepo"]["interval"] = json!("12h");
        let module = |n: usize| format!("{MODULE}# push {n}\n");
        self.scene.commit("told", &[("main.tf", &module(0))]).await;
        self.scene.apply(&tf).await;
        self.scene.ready("told").await;
        let push = json!({"repository": tf["spec"]["gitRepo"]["url"]});
        let server = self.scene.git_server().await;
        let mut times = Vec::new();
        for n in 1..=ROUNDS {
            self.scene.commit("told", &[("main.tf", &module(n))]).await;
            let before = self.scene.jobs("build").await;
            let start = Instant::now();
            let made = async {
                while self.scene.jobs("build").await == before {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                start.elapsed()
            };
            let (_, made) = tokio::join!(server.report(&push), made);
            times.push(made);
            let run = i64::try_from(n).unwrap() + 1;
            self.scene.ready_after_run("told", run).await;
        }
        times
    }

    /// Returns digests and sizes, in bytes, of the blobs of the current image of `name`.
    async fn layers(&self, name: &str) -> BTreeMap<String, u64> {
        let image = self.crowd.image(name).await.replace(
            "registry.alustan.test:5000",
            &alustan_tests::node(5000).to_string(),
        );
        let raw = self
            .scene
            .cluster
            .run(
                "skopeo",
                &[
                    "inspect",
                    "--raw",
                    "--tls-verify=false",
                    &format!("docker://{image}"),
                ],
            )
            .await;
        let manifest: Value = serde_json::from_str(&raw).unwrap();
        manifest["layers"]
            .as_array()
            .unwrap()
            .iter()
            .chain([&manifest["config"]])
            .map(|layer| {
                (
                    layer["digest"].as_str().unwrap().to_owned(),
                    layer["size"].as_u64().unwrap(),
                )
            })
            .collect()
    }

    /// Measures drift checks, from the start of the run to its end in the run record.
    async fn drift(&self) -> Vec<Duration> {
        let mut tf = self.crowd.resource("built0", "built0");
        tf["spec"]["driftDetection"] = json!({"mode": "Report", "interval": "6s"});
        self.scene.apply(&tf).await;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let number = self.record().await["number"].as_i64().unwrap();
            self.until_record(move |record| record["number"].as_i64() > Some(number))
                .await;
            let start = Instant::now();
            self.until_record(move |record| {
                record["number"].as_i64() > Some(number) && record["phase"] == "Recorded"
            })
            .await;
            times.push(start.elapsed());
        }
        tf["spec"]["driftDetection"] = json!({"mode": "Report", "interval": "1h"});
        self.scene.apply(&tf).await;
        self.scene.ready("built0").await;
        times
    }

    async fn record(&self) -> Value {
        serde_json::from_str(&self.scene.data("built0-run").await["record"]).unwrap()
    }

    async fn until_record(&self, wanted: impl Fn(&Value) -> bool) {
        let holds = |secret: Option<&Secret>| {
            let data = secret.and_then(|secret| secret.data.as_ref());
            data.and_then(|data| data.get("record"))
                .is_some_and(|record| wanted(&serde_json::from_slice(&record.0).unwrap()))
        };
        await_condition(self.scene.api::<Secret>(), "built0-run", holds)
            .await
            .unwrap();
    }

    /// Counts API writes during five git intervals in which nothing changes.
    async fn idle(&self) -> usize {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let mut log = AuditLog::open(&self.scene.cluster);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let requests = log.requests();
        requests.iter().filter(|request| request.is_write()).count()
    }

    /// Counts API calls by verb for one resource, from apply to Ready.
    async fn calls(&self) -> BTreeMap<String, usize> {
        let mut log = AuditLog::open(&self.scene.cluster);
        self.scene
            .apply(&self.crowd.resource("counted", "bench"))
            .await;
        self.scene.ready("counted").await;
        let mut calls = BTreeMap::new();
        for request in log.requests() {
            *calls.entry(request.verb).or_default() += 1;
        }
        self.scene.delete("counted", &DeleteParams::default()).await;
        calls
    }
}

struct Round {
    ready: Duration,
    job: Duration,
    report_to_ready: Duration,
    delete: Duration,
}

struct Report {
    floor: Duration,
}

impl Report {
    fn line(&mut self, name: &str, time: Duration) {
        let ratio = time.as_secs_f64() / self.floor.as_secs_f64();
        println!("{name:<48} {:>8} {ratio:>8.2}", time.as_millis());
    }
}

/// Prints minimum, median and maximum.
fn spread(name: &str, times: &[Duration]) {
    let millis = |time: Option<&Duration>| time.map_or(0, Duration::as_millis);
    let (first, last) = (millis(times.iter().min()), millis(times.iter().max()));
    let median = median(times.to_vec()).as_millis();
    println!("{name:<48} {first:>8} {median:>8} {last:>8}");
}

fn part(rounds: &[Round], part: impl Fn(&Round) -> Duration) -> Vec<Duration> {
    rounds.iter().map(part).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn calls(calls: &BTreeMap<String, usize>) -> String {
    let each: Vec<String> = calls
        .iter()
        .map(|(verb, count)| format!("{verb} {count}"))
        .collect();
    format!("{} ({})", calls.values().sum::<usize>(), each.join(", "))
}
