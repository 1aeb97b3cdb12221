//! Concurrent jobs with a limit in total and per host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;

use futures::StreamExt;
use futures::future::select;
use futures::stream;

/// Maximum number of concurrent jobs.
pub const AT_ONCE: usize = 64;
/// Maximum number of concurrent jobs per host, such as a recorder with many cameras.
pub const PER_HOST: usize = 4;

/// Runs jobs until `end`; returns their results, `None` for those that were not completed.
pub async fn run<J, R>(
    jobs: &[J],
    host: impl Fn(&J) -> &str,
    perform: impl AsyncFn(&J) -> R,
    end: impl Future<Output = ()>,
) -> Vec<Option<R>> {
    let results = RefCell::new(jobs.iter().map(|_| None).collect::<Vec<Option<R>>>());
    let queue = async |queue: Vec<usize>| {
        for index in queue {
            let Some(job) = jobs.get(index) else { continue };
            let result = perform(job).await;
            if let Some(place) = results.borrow_mut().get_mut(index) {
                *place = Some(result);
            }
        }
    };
    let all = stream::iter(queues(jobs.iter().map(host))).for_each_concurrent(AT_ONCE, queue);
    select(pin!(all), pin!(end)).await;
    results.take()
}

/// Distributes jobs into sequential queues, at most [`PER_HOST`] per host. Queues are in the order of their first jobs,
/// so that the order of the jobs decides which ones are left out when time runs out.
fn queues<'a>(hosts: impl Iterator<Item = &'a str>) -> Vec<Vec<usize>> {
    let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, host) in hosts.enumerate() {
        by_host.entry(host).or_default().push(index);
    }
    let split = |jobs: Vec<usize>| {
        let queue = move |number| jobs.iter().skip(number).step_by(PER_HOST).copied().collect::<Vec<usize>>();
        (0..PER_HOST).map(queue)
    };
    let mut queues: Vec<Vec<usize>> = by_host.into_values().flat_map(split).filter(|queue| !queue.is_empty()).collect();
    queues.sort_unstable();
    queues
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn, ready};
    use std::task::{Context, Poll};

    use futures::FutureExt;
    use futures::channel::oneshot;
    use futures::executor::block_on;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_job_is_in_one_queue_and_a_host_has_four_at_most(hosts in prop::collection::vec("[a-e]", 0..60)) {
            let queues = queues(hosts.iter().map(String::as_str));
            let mut all: Vec<usize> = queues.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..hosts.len()).collect::<Vec<_>>());
            for host in "abcde".chars() {
                let of_host = queues.iter().filter(|queue| queue.iter().any(|job| hosts[*job].starts_with(host)));
                prop_assert!(of_host.count() <= PER_HOST);
            }
            prop_assert!(queues.is_sorted_by_key(|queue| queue[0]), "in the order of jobs");
            for queue in queues {
                prop_assert!(queue.iter().all(|job| hosts[*job] == hosts[queue[0]]));
            }
        }
    }

    #[test]
    fn all_jobs_run_with_at_most_64_at_once() {
        let (running, most) = (Cell::new(0), Cell::new(0));
        let jobs: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let perform = async |job: &String| {
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            for _ in 0..100 {
                yield_once().await;
            }
            running.set(running.get() - 1);
            job.len()
        };
        let results = block_on(run(&jobs, |job| job.as_str(), perform, pending()));
        assert_eq!(results, jobs.iter().map(|job| Some(job.len())).collect::<Vec<_>>());
        assert_eq!(most.get(), AT_ONCE);
    }

    #[test]
    fn stuck_job_blocks_only_its_own_queue() {
        let (end, ended) = oneshot::channel();
        let end = RefCell::new(Some(end));
        let jobs = [("slow", 0), ("slow", 1), ("slow", 2), ("slow", 3), ("slow", 4), ("quick", 5), ("quick", 6)];
        let perform = async |(host, number): &(&str, i32)| match (*host, *number) {
            ("slow", 0) => pending().await,
            ("quick", 6) => {
                end.borrow_mut().take().unwrap().send(()).unwrap();
                6
            }
            (_, number) => number,
        };
        let results = block_on(run(&jobs, |job| job.0, perform, ended.map(Result::unwrap)));
        assert_eq!(results, [None, Some(1), Some(2), Some(3), None, Some(5), Some(6)]);
    }

    #[test]
    fn no_job_starts_without_time() {
        let results = block_on(run(&["a"], |job| job, async |_| pending::<()>().await, ready(())));
        assert_eq!(results, [None]);
    }

    async fn yield_once() {
        let mut yielded = false;
        let once = |context: &mut Context<'_>| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(once).await;
    }
}
