//! Controls the API server of a leased control plane. Another process, the keeper, runs the control plane. So the test
//! sends requests to the keeper over a Unix socket. A request is one byte. The response is a newline, preceded by the
//! message if the request failed.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The name of the socket in the folder of a leased control plane.
pub(crate) const SOCKET: &str = "requests";

/// How long a request may take. The start of an API server takes longest.
const LIMIT: Duration = Duration::from_mins(4);

/// A change of the state of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Stop,
    Start,
    Pause,
    Resume,
}

impl Request {
    const ALL: [Self; 4] = [Self::Stop, Self::Start, Self::Pause, Self::Resume];

    const fn byte(self) -> u8 {
        match self {
            Self::Stop => b's',
            Self::Start => b'S',
            Self::Pause => b'p',
            Self::Resume => b'r',
        }
    }
}

/// Sends a request to the keeper of the control plane in `folder`, and waits until the keeper has performed it.
///
/// # Errors
/// The keeper has ended or does not respond in time, or the request failed.
pub(crate) fn send(folder: &Path, request: Request) -> anyhow::Result<()> {
    let socket = folder.join(SOCKET);
    let mut stream = UnixStream::connect(&socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(LIMIT)).context("cannot set a timeout")?;
    stream.write_all(&[request.byte()]).context("cannot send a request to the control plane's keeper")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).context("no response from the control plane's keeper")?;
    // Without the newline at the end of each response, the end of the keeper would look like a success.
    ensure!(response.pop() == Some(b'\n'), "the control plane's keeper has ended");
    ensure!(response.is_empty(), "{}", String::from_utf8_lossy(&response));
    Ok(())
}

/// Reads a request from a connection, performs it with `perform`, and writes the response.
///
/// # Errors
/// The connection is closed, or the request is unknown.
pub(crate) async fn respond(
    mut stream: tokio::net::UnixStream,
    perform: impl AsyncFnOnce(Request) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let byte = stream.read_u8().await.context("cannot read a request")?;
    let request = Request::ALL.into_iter().find(|request| request.byte() == byte);
    let request = request.ok_or_else(|| anyhow!("unknown request {byte}"))?;
    let response = perform(request).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
    stream.write_all(format!("{response}\n").as_bytes()).await.context("cannot write a response")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[tokio::test]
    async fn requests_return_result_of_keeper() {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let client = tokio::task::spawn_blocking(move || {
            let results = Request::ALL.map(|request| send(folder.path(), request).map_err(|error| error.to_string()));
            (results, folder)
        });
        for expected in Request::ALL {
            let (stream, _) = listener.accept().await.unwrap();
            let perform = async |request| {
                assert_eq!(request, expected);
                if request == Request::Pause {
                    bail!("it is stopped")
                }
                Ok(())
            };
            respond(stream, perform).await.unwrap();
        }
        let (results, _folder) = client.await.unwrap();
        assert_eq!(results, [Ok(()), Ok(()), Err("it is stopped".to_owned()), Ok(())]);
    }

    #[tokio::test]
    async fn end_of_keeper_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let client = tokio::task::spawn_blocking(move || send(folder.path(), Request::Stop));
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        drop(stream);
        assert!(client.await.unwrap().unwrap_err().to_string().contains("has ended"));
    }
}
