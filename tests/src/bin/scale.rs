//! `make scale N=1000` fills the dev cluster with N applied resources, measures the operator and prints the table of docs/scale.md.

#![expect(clippy::print_stdout, reason = "a tool")]

use std::time::{Duration, Instant};

use alustan_tests::{Calls, Crash, Crowd, Memory, Scale, Scene, Sender, Size, ratio, scene};

const MIB: u64 = 1 << 20;

#[tokio::main]
async fn main() {
    let number = |name: &str, default: u64| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty());
        value.map_or(default, |value| value.parse().unwrap_or(default))
    };
    let resources = usize::try_from(number("N", 1_000)).unwrap_or(usize::MAX);
    let window = Duration::from_secs(number("IDLE", 120));
    Box::pin(measure(Size::of(resources), window)).await;
}

async fn measure(size: Size, window: Duration) {
    let start = Instant::now();
    let phase = |text: &str| eprintln!("{:>5} s  {text}", start.elapsed().as_secs());
    phase(&format!("{size:?}"));
    let mut scale = Scale::open(size).await;
    let mut table = Table::default();
    phase("filling the cluster");
    table.fill(&mut scale, size).await;
    phase("completing the histories");
    scale.seed_histories().await;
    phase("restarting the operator");
    table.restart(&mut scale).await;
    phase("idle");
    table.idle(&mut scale, size, window).await;
    phase("a commit that concerns many resources");
    table.commit(&mut scale).await;
    phase("later applies");
    scale.retained().await;
    let applies = scale.applies(2).await;
    table.calls(
        "API calls of the first apply after a start: operator + run",
        &applies,
    );
    scale.retained().await;
    let applies = scale.applies(3).await;
    table.calls("API calls of a later apply: operator + run", &applies);
    phase("restart under load");
    table.crash("kill -9", &scale.crash_with_restart().await);
    phase("failover under load");
    table.crash("failover", &scale.crash_with_failover().await);
    phase("applies at once on the real node");
    table.crowd().await;
    let errors = scale.errors();
    table.row("failed pods on the fake node", "0", errors.len());
    for error in errors.iter().take(10) {
        eprintln!("  {error}");
    }
    phase("removing the resources");
    scale.close().await;
    println!("{}", table.text(size));
    phase("done");
}

impl Table {
    async fn fill(&mut self, scale: &mut Scale, size: Size) {
        let filled = scale.fill().await;
        let rate = ratio(size.resources, 1) / filled.time.as_secs_f64();
        let value = format!("{}, {rate:.1}", seconds(filled.time));
        self.row("first apply of all: time, applies per second", "", value);
        self.row("builds on the fake node", "", filled.builds);
        let figure = "API calls of a first apply with its share of the builds: operator + run";
        self.calls(figure, &filled.calls);
    }

    async fn restart(&mut self, scale: &mut Scale) {
        let start = scale.restart().await;
        let figure = "operator memory, peak at start (with page cache)";
        self.row(figure, "<= 300 MiB", mib(start.memory.peak));
        let figure = "operator memory, end of start: working set, anonymous";
        self.row(figure, "", memory(&start.memory));
        let figure = "time from start to the first right decision";
        self.row(figure, "<= 30 s", seconds(start.first_decision));
        let figure = "time from start to the last evaluated resource";
        self.row(figure, "", seconds(start.last_evaluated));
        let cpu = format!("{:.1} s", start.cpu_seconds);
        self.row("CPU time of the start", "", cpu);
        let value = format!("{}, {}", start.reconciles, start.writes);
        self.row("start: reconciles, API writes", "", value);
        details(&start.calls);
    }

    async fn idle(&mut self, scale: &mut Scale, size: Size, window: Duration) {
        let idle = scale.idle(window).await;
        let of_window = format!("in {} s without a change", window.as_secs());
        let figure = "operator memory at rest: working set, anonymous";
        self.row(figure, "<= 150 MiB", memory(&idle.memory));
        let figure = format!("API writes {of_window} (Lease excepted)");
        self.row(&figure, "0", idle.writes.len());
        let figure = format!("API reads {of_window} (watches excepted)");
        self.row(&figure, "0", idle.reads.len());
        let cpu = format!("{:.1} s", idle.cpu_seconds);
        self.row(&format!("CPU time {of_window}"), "", cpu);
        for request in idle.writes.iter().chain(&idle.reads).take(10) {
            eprintln!("  {request}");
        }
        let objects = scale.objects().await;
        let stored = objects.iter().filter(|(kind, _)| **kind != "Event");
        let stored = ratio(stored.map(|(_, count)| count).sum(), size.resources);
        let figure = "objects in etcd per resource, without Events";
        self.row(figure, "<= 8", format!("{stored:.1}"));
        let by_kind: Vec<_> = objects
            .iter()
            .map(|(kind, count)| format!("{kind} {:.2}", ratio(*count, size.resources)))
            .collect();
        self.row("objects per resource by kind", "", by_kind.join(", "));
        let jobs = objects.get("Job").copied().unwrap_or_default();
        self.row("Jobs at rest", "", jobs);
    }

    async fn commit(&mut self, scale: &mut Scale) {
        let commit = scale.commit().await;
        let what = format!("commit that concerns {} resources", commit.concerned);
        let both = |[first, last]: [Duration; 2]| format!("{}, {}", seconds(first), seconds(last));
        let figure = format!("{what}: push to first, last build Job");
        self.row(&figure, "<= 1 s, <= 10 s", both(commit.builds));
        let figure = format!("{what}: push to first, last run Job");
        self.row(&figure, "", both(commit.runs));
        let figure = format!("{what}: push to all Ready");
        self.row(&figure, "", seconds(commit.ready));
    }

    fn crash(&mut self, what: &str, crash: &Crash) {
        let figure = format!(
            "{what} with {} active runs: all Ready after, lost, doubled",
            crash.active
        );
        let value = format!(
            "{}, {}, {}",
            seconds(crash.ready),
            crash.lost,
            crash.doubled
        );
        self.row(&figure, "0 lost, 0 doubled", value);
    }

    async fn crowd(&mut self) {
        let (bare, applies) = crowd().await;
        let figure = format!("{} bare Jobs at once on the real node", Crowd::SIZE);
        self.row(&figure, "", seconds(bare));
        let figure = format!(
            "{} applies at once on the real node, all Ready",
            Crowd::SIZE
        );
        let factor = applies.as_secs_f64() / bare.as_secs_f64();
        let value = format!("{}, {factor:.2} x", seconds(applies));
        self.row(&figure, "<= 1.2 x bare", value);
    }

    fn calls(&mut self, figure: &str, calls: &Calls) {
        let of = |sender| calls.per_resource(sender);
        let value = format!("{:.1} + {:.1}", of(Sender::Operator), of(Sender::Runner));
        self.row(figure, "<= 25", value);
        details(calls);
    }
}

/// Prints the requests per resource by kind.
fn details(calls: &Calls) {
    for ((sender, kind), count) in &calls.by_kind {
        let count = ratio(*count, calls.resources);
        eprintln!("  {sender:?} {kind}: {count:.2}");
    }
}

/// Measures bare Jobs and applies at once.
async fn crowd() -> (Duration, Duration) {
    let (send, receive) = tokio::sync::oneshot::channel();
    scene("scale", async |scene: std::sync::Arc<Scene>| {
        scene.commit("bench", &[("main.tf", Crowd::MODULE)]).await;
        let crowd = Crowd::new(&scene).await;
        scene.apply(&crowd.resource("built", "bench")).await;
        scene.ready("built").await;
        let image = crowd.image("built").await;
        let bare = crowd.bare_jobs(&image, Crowd::APPLY).await;
        let applies = crowd.applies().await.ready;
        let last = |times: Vec<Duration>| times.into_iter().max().unwrap_or_default();
        // The receiver exists until this function returns.
        let _ = send.send((last(bare), last(applies)));
    })
    .await;
    receive.await.unwrap_or_default()
}

/// Value of a figure in the table.
struct Cell(String);

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self(count.to_string())
    }
}

#[derive(Default)]
struct Table(Vec<[String; 3]>);

impl Table {
    fn row(&mut self, figure: &str, goal: &str, value: impl Into<Cell>) {
        let Cell(value) = value.into();
        eprintln!("        {figure}: {value}");
        self.0.push([figure.to_owned(), goal.to_owned(), value]);
    }

    fn text(&self, size: Size) -> String {
        let Size {
            resources,
            namespaces,
            repositories,
            modules,
            real,
        } = size;
        let mut lines = vec![
            format!(
                "{resources} resources in {namespaces} namespaces, from {repositories} repositories and a monorepo of {modules} modules; {real} of them on the real node."
            ),
            String::new(),
            "| figure | goal | measured |".to_owned(),
            "|---|---|---|".to_owned(),
        ];
        lines.extend(
            self.0
                .iter()
                .map(|[figure, goal, value]| format!("| {figure} | {goal} | {value} |")),
        );
        lines.join("\n")
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

fn memory(memory: &Memory) -> String {
    format!("{}, {}", mib(memory.working_set), mib(memory.anonymous))
}
