//! A connection's stream with strict framing, a write timeout and a lingering end.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_io_timeout::TimeoutStream;

use super::head::Framing;
use super::phase::Phase;

/// Time for a client to read the last response while it still sends. Closing at once would reset
/// the connection, and the response would be lost.
const LINGER: Duration = Duration::from_secs(2);

/// A stream that the HTTP parser reads requests from.
pub(super) struct Guarded<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    framing: Framing,
    phase: Arc<Mutex<Phase>>,
    /// The parser has got the byte that ends the connection.
    is_refused: bool,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite> Guarded<S> {
    pub(super) fn new(stream: S, write_timeout: Duration, phase: Arc<Mutex<Phase>>) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(write_timeout));
        Self { stream: Box::pin(stream), framing: Framing::new(), phase, is_refused: false, linger: None }
    }

    fn note_written(&self) {
        let mut phase = self.phase.lock();
        *phase = phase.written(Instant::now());
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for Guarded<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_refused {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(this.stream.as_mut().poll_read(cx, buf))?;
        if let Err(at) = this.framing.follow(&buf.filled()[before..]) {
            this.is_refused = true;
            buf.set_filled(before + at);
            // No head has this byte: the parser answers 400 and closes.
            buf.put_slice(&[0]);
        }
        if buf.filled().len() > before {
            let mut phase = this.phase.lock();
            *phase = phase.read(this.framing.position(), Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for Guarded<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(this.stream.as_mut().poll_write(cx, bytes));
        this.note_written();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(this.stream.as_mut().poll_write_vectored(cx, parts));
        this.note_written();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.as_mut().poll_flush(cx)
    }

    /// Ends the output, then reads and discards until the client ends its own or the time is over.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(this.stream.as_mut().poll_shutdown(cx))?;
        }
        let linger = this.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [0; 4096];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(this.stream.as_mut().poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
