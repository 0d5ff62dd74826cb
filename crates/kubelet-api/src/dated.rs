//! gRPC services that still answer while the system clock is outside HTTP's date range.
//!
//! hyper adds a `Date` header to each response without one, and panics if the clock is before 1970 or after 9999.
//! tonic has no setting against this. A board with an unset clock still has to serve its devices. So this module adds
//! the nearest valid date to such responses. No gRPC client reads the header.

use std::{
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tonic::{
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{HeaderValue, Request, Response, header::DATE},
    },
    server::NamedService,
};

/// Service wrapper that adds a `Date` header to responses while hyper cannot format the clock's time.
#[derive(Clone, Debug)]
pub struct WithDateHeader<S>(pub S);

/// First second of the year 10000.
const HTTP_DATE_END: Duration = Duration::from_secs(253_402_300_800);

/// Nearest date that HTTP can express; `None` if HTTP can express `now` itself.
fn nearest_valid_date(now: SystemTime) -> Option<HeaderValue> {
    match now.duration_since(UNIX_EPOCH) {
        Ok(since_epoch) if since_epoch < HTTP_DATE_END => None,
        Ok(_) => Some(HeaderValue::from_static("Fri, 31 Dec 9999 23:59:59 GMT")),
        Err(_) => Some(HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT")),
    }
}

// === impl WithDateHeader ===

impl<S> Service<Request<Body>> for WithDateHeader<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Response<Body>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.0.call(request);
        Box::pin(async {
            let mut response = response.await?;
            if let Some(date) = nearest_valid_date(SystemTime::now()) {
                response.headers_mut().insert(DATE, date);
            }
            Ok(response)
        })
    }
}

impl<S: NamedService> NamedService for WithDateHeader<S> {
    const NAME: &'static str = S::NAME;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_outside_http_dates_gets_the_nearest_date_and_other_clocks_get_none() {
        let second = Duration::from_secs(1);
        let check = |now, expected: Option<&str>| {
            let actual = nearest_valid_date(now);
            assert_eq!(
                actual.as_ref().map(|date| date.to_str().expect("the date is text")),
                expected,
                "{now:?}"
            );
        };
        check(UNIX_EPOCH - second, Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        check(UNIX_EPOCH, None);
        check(SystemTime::now(), None);
        check(UNIX_EPOCH + HTTP_DATE_END - second, None);
        check(UNIX_EPOCH + HTTP_DATE_END, Some("Fri, 31 Dec 9999 23:59:59 GMT"));
    }
}
