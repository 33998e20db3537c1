//! Tests HTTP/2 attacks that have broken other servers. The tests encode the frames themselves, because no client
//! library sends such frames.

use std::time::Duration;

use crate::support::{GET_FAST, PATIENCE, Running, ask, fast_and_large, fast_drain, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

const SHORT: Duration = Duration::from_millis(300);

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 0xb;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Encodes a header as a literal that is not added to the HPACK table.
pub(crate) fn header(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127);
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text.as_bytes());
    }
    block
}

fn get_block(path: &str) -> Vec<u8> {
    [header(":method", "GET"), header(":scheme", "https"), header(":authority", "x"), header(":path", path)].concat()
}

/// A received frame.
#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// An HTTP/2 connection that sends and receives single frames.
pub(crate) struct Raw {
    reading: ReadHalf<TlsStream<TcpStream>>,
    writing: WriteHalf<TlsStream<TcpStream>>,
}

impl Raw {
    /// Connects with these client settings: pairs of identifier and value.
    async fn connect(server: &Running, settings: &[(u16, u32)]) -> Self {
        Self::over(server.tls(&["h2"]).await, settings).await
    }

    /// Begins HTTP/2 on an existing connection, with these client settings.
    pub(crate) async fn over(stream: TlsStream<TcpStream>, settings: &[(u16, u32)]) -> Self {
        let (reading, writing) = tokio::io::split(stream);
        let mut raw = Self { reading, writing };
        let payload: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        let text = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &payload)].concat();
        assert!(raw.send(&text).await);
        raw
    }

    /// Sends bytes. Returns `false` if the server has closed the connection or does not accept all bytes in time.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        let send = async {
            self.writing.write_all(bytes).await?;
            self.writing.flush().await
        };
        matches!(timeout(PATIENCE, send).await, Ok(Ok(())))
    }

    /// Returns the next frame, or `None` if the connection has ended.
    async fn read(&mut self) -> Option<Frame> {
        let read = async {
            let mut head = [0; 9];
            self.reading.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.reading.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Some(Frame { kind: head[3], flags: head[4], stream, payload })
        };
        timeout(PATIENCE, read).await.expect("the server sends no frame and does not close")
    }

    /// Reads until GOAWAY arrives or the connection ends. Returns the error code of GOAWAY, or `None` if the connection
    /// ends without one.
    async fn goaway_code(mut self) -> Option<u32> {
        while let Some(frame) = self.read().await {
            if frame.kind == GOAWAY {
                return Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        None
    }

    /// Waits for the end of the response on a stream. Returns `false` if the connection ends first.
    pub(crate) async fn answered(&mut self, stream: u32) -> bool {
        while let Some(frame) = self.read().await {
            if frame.stream == stream && frame.flags & END_STREAM != 0 && matches!(frame.kind, DATA | HEADERS) {
                return true;
            }
        }
        false
    }
}

/// Asserts that the server still answers another client.
async fn assert_others_are_served(server: &Running) {
    let mut stream = server.http1().await;
    assert_eq!(ask(&mut stream, GET_FAST).await.body, "fast");
}

#[tokio::test]
async fn handwritten_frames_are_answered() {
    let server = Running::start(fast_and_large(), fast_drain()).await;
    let mut raw = Raw::connect(&server, &[]).await;
    assert!(raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &get_block("/fast"))).await);
    assert!(raw.answered(1).await);
}

#[tokio::test]
async fn rapid_reset_ends_connection() {
    let server = Running::start(fast_and_large(), fast_drain()).await;
    let mut raw = Raw::connect(&server, &[]).await;
    let mut burst = Vec::new();
    for number in 0..10_000_u32 {
        let stream = 2 * number + 1;
        burst.extend_from_slice(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &get_block("/fast")));
        burst.extend_from_slice(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    raw.send(&burst).await;
    assert!(matches!(raw.goaway_code().await, None | Some(ENHANCE_YOUR_CALM)));
    until("the connection's permit is free", || server.connections() < 0.5).await;
    assert_others_are_served(&server).await;
}

#[tokio::test]
async fn endless_head_ends_connection() {
    let server = Running::start(fast_and_large(), fast_drain()).await;
    let mut raw = Raw::connect(&server, &[]).await;
    assert!(raw.send(&frame(HEADERS, END_STREAM, 1, &get_block("/fast"))).await);
    let piece = frame(CONTINUATION, 0, 1, &header("x-filler", &"y".repeat(100)).repeat(100));
    let (mut sent, most) = (0, 64 * 1024 * 1024);
    while sent < most && raw.send(&piece).await {
        sent += piece.len();
    }
    println!("ended after {sent} bytes of continuations");
    assert!(sent < 8 * 1024 * 1024, "{sent} bytes of one head were accepted");
    until("the connection's permit is free", || server.connections() < 0.5).await;
    assert_others_are_served(&server).await;
}

#[tokio::test]
async fn stalled_head_ends_connection() {
    let mut settings = fast_drain();
    settings.idle_timeout = 4 * SHORT;
    let server = Running::start(fast_and_large(), settings).await;
    let began = Instant::now();
    let mut raw = Raw::connect(&server, &[]).await;
    assert!(raw.send(&frame(HEADERS, END_STREAM, 1, &get_block("/fast"))).await);
    // An incomplete head and other frames do not keep the connection open. Only requests do.
    raw.goaway_code().await;
    assert!(began.elapsed() >= 2 * SHORT, "{:?}", began.elapsed());
    let mut pinging = Raw::connect(&server, &[]).await;
    let ping = frame(PING, 0, 0, &[0; 8]);
    let began = Instant::now();
    while pinging.send(&ping).await {
        assert!(began.elapsed() < PATIENCE, "pings keep a connection open");
        tokio::time::sleep(SHORT / 20).await;
    }
    until("the permits are free", || server.connections() < 0.5).await;
}

#[tokio::test]
async fn unread_settings_and_pings_end_connection() {
    for (name, text) in [("settings", frame(SETTINGS, 0, 0, &[])), ("pings", frame(PING, 0, 0, &[7; 8]))] {
        let mut settings = fast_drain();
        settings.response_timeout = SHORT;
        let server = Running::start(fast_and_large(), settings).await;
        let mut raw = Raw::connect(&server, &[]).await;
        let burst = text.repeat(4096);
        let (mut sent, most) = (0, 512 * 1024 * 1024);
        while sent < most && raw.send(&burst).await {
            sent += burst.len();
        }
        println!("{name}: ended after {sent} bytes");
        assert!(sent < most, "{name}: the server keeps answering a client that does not read");
        until(name, || server.closed("slow_reader") > 0.5).await;
        until("the connection's permit is free", || server.connections() < 0.5).await;
        drop(raw);
        assert_others_are_served(&server).await;
    }
}

#[tokio::test]
async fn responses_behind_closed_window_end_connection() {
    // With an empty flow-control window, hyper does not take the response from the body yet. With a window of one byte,
    // hyper takes the whole response and keeps the rest in memory.
    for window in [0, 1] {
        let mut settings = fast_drain();
        settings.response_timeout = 3 * SHORT;
        let server = Running::start(fast_and_large(), settings).await;
        let mut raw = Raw::connect(&server, &[(4, window)]).await;
        let began = Instant::now();
        assert!(raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &get_block("/large"))).await);
        // Other requests continue, and must not extend the deadline.
        let mut stream = 3;
        while server.closed("slow_reader") < 0.5 {
            assert!(began.elapsed() < PATIENCE, "window {window}: the connection is kept open");
            raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &get_block("/nowhere"))).await;
            stream += 2;
            tokio::time::sleep(SHORT / 10).await;
        }
        assert!(began.elapsed() >= 2 * SHORT, "window {window}: {:?}", began.elapsed());
        until("the connection's permit is free", || server.connections() < 0.5).await;
        assert_others_are_served(&server).await;
    }
}

#[tokio::test]
async fn unread_responses_do_not_pile_up() {
    let mut settings = fast_drain();
    settings.response_timeout = Duration::from_mins(5);
    let server = Running::start(fast_and_large(), settings).await;
    let mut raw = Raw::connect(&server, &[(4, 0)]).await;
    let began = Instant::now();
    for number in 0..100 {
        if !raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &get_block("/large"))).await {
            break;
        }
    }
    until("the connection is timed out", || server.closed("slow_reader") > 0.5).await;
    // The connection ends long before the deadline of its responses, because 100 responses have 25 MiB and the limit is
    // 1 MiB.
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    until("the connection's permit is free", || server.connections() < 0.5).await;
    assert_others_are_served(&server).await;
}

#[tokio::test]
async fn concurrent_streams_are_bounded() {
    let mut settings = fast_drain();
    settings.max_streams = 4;
    let server = Running::start(fast_and_large(), settings).await;
    let mut raw = Raw::connect(&server, &[(4, 0)]).await;
    for number in 0..5 {
        assert!(raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &get_block("/fast"))).await);
    }
    let refused = loop {
        let frame = raw.read().await.expect("the server neither rejects nor answers the fifth stream");
        if frame.kind == RST_STREAM {
            break frame;
        }
    };
    assert_eq!((refused.stream, &*refused.payload), (9, &7_u32.to_be_bytes()[..]), "REFUSED_STREAM");
}
