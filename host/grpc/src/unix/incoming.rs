//! The connections of a server on a Unix socket.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;

use super::Filter;

/// Pause after a failed accept: the process is probably out of file descriptors, and an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns a stream of the connections for which `may_connect` holds, filtered. Beyond `limit` connections the oldest is closed.
pub fn incoming(
    listener: UnixListener,
    limit: usize,
    may_connect: impl FnMut(&UnixStream) -> bool + Send,
) -> impl Stream<Item = io::Result<Filter<UnixStream>>> + Send {
    let room = Arc::new(Semaphore::new(limit));
    let open = VecDeque::<oneshot::Sender<()>>::new();
    unfold((listener, room, open, may_connect), move |(listener, room, mut open, mut may_connect)| async move {
        loop {
            let accepted = match listener.accept().await {
                Ok((stream, _)) if may_connect(&stream) => {
                    open.retain(|connection| !connection.is_closed());
                    if open.len() >= limit
                        && let Some(oldest) = open.pop_front()
                    {
                        let _ = oldest.send(()); // it may have ended by itself
                    }
                    let permit = Arc::clone(&room).acquire_owned().await.ok()?;
                    let (sender, order) = oneshot::channel();
                    open.push_back(sender);
                    Ok(Filter::new(stream, permit, order))
                }
                Ok(_) => continue,
                Err(error) => {
                    sleep(ACCEPT_PAUSE).await;
                    Err(error)
                }
            };
            return Some((accepted, (listener, room, open, may_connect)));
        }
    })
}
