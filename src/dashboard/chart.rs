//! Small charts of the last hour as SVG.

use jiff::Timestamp;
use maud::{Markup, html};

use crate::api::Point;

/// Bars or places of a line: one a minute.
const MINUTES: usize = 60;
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 72.0;

/// A minute of the last hour; `None` before the process began.
struct Minute<'a> {
    points: &'a [Point],
}

/// The last hour by minutes, the oldest first; the last one is the one that goes on.
fn minutes(points: &[Point]) -> Vec<Minute<'_>> {
    let per = points.len().div_ceil(MINUTES).max(6);
    let mut minutes: Vec<Minute> = points.rchunks(per).take(MINUTES).map(|points| Minute { points }).collect();
    while minutes.len() < MINUTES {
        minutes.push(Minute { points: &[] });
    }
    minutes.reverse();
    minutes
}

impl Minute<'_> {
    fn sum(&self, of: impl Fn(&Point) -> u32) -> f64 {
        self.points.iter().map(of).sum::<u32>().into()
    }

    fn most(&self, of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        self.points.iter().filter_map(of).reduce(f64::max)
    }

    fn mean(&self, of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.points.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    fn clock(&self) -> String {
        let at: Option<Timestamp> = self.points.first().map(|point| point.at);
        at.map_or_else(String::new, |at| at.strftime("%H:%M UTC").to_string())
    }
}

/// Results of the last hour, stacked by how they ended.
pub(super) fn results(points: &[Point]) -> Markup {
    let minutes = minutes(points);
    let counts: Vec<[f64; 3]> =
        minutes.iter().map(|m| [m.sum(|p| p.succeeded), m.sum(|p| p.retried), m.sum(|p| p.failed)]).collect();
    let top = counts.iter().map(|c| c.iter().sum::<f64>()).fold(0.0, f64::max);
    let total = |place: usize| counts.iter().map(|c| c[place]).sum::<f64>();
    let step = WIDTH / MINUTES as f64;
    let bars = html! {
        @for (place, (minute, count)) in minutes.iter().zip(&counts).enumerate().filter(|(_, (_, c))| c.iter().sum::<f64>() > 0.0) {
            g {
                title { (minute.clock()) ": " (count[0]) " succeeded, " (count[1]) " retried, " (count[2]) " failed" }
                rect.hit x=(place as f64 * step) y="0" width=(step) height=(HEIGHT) {}
                @for (class, from, to) in stack(count) {
                    rect class=(class) x=(round(place as f64 * step + 0.6)) width=(round(step - 1.2))
                        y=(round(HEIGHT - to / top * HEIGHT)) height=(round((to - from) / top * HEIGHT)) {}
                }
            }
        }
    };
    let said = format!("{} succeeded, {} retried, {} failed", total(0), total(1), total(2));
    let legend = html! {
        span.key.good { (total(0)) " succeeded" } span.key.warn { (total(1)) " retried" } span.key.bad { (total(2)) " failed" }
    };
    figure("Results", "a minute", (top > 0.0).then(|| format!("{top:.0}")), &said, &legend, &bars)
}

fn stack(count: &[f64; 3]) -> impl Iterator<Item = (&'static str, f64, f64)> {
    let mut from = 0.0;
    let parts = ["good", "warn", "bad"].into_iter().zip(*count).filter(|(_, n)| *n > 0.0);
    parts
        .map(move |(class, n)| {
            let part = (class, from, from + n);
            from += n;
            part
        })
        .collect::<Vec<_>>()
        .into_iter()
}

/// A latency: its median and what 95 of 100 stay below.
pub(super) fn latency(
    title: &str,
    points: &[Point],
    half: impl Fn(&Point) -> Option<f64>,
    most: impl Fn(&Point) -> Option<f64>,
) -> Markup {
    let minutes = minutes(points);
    let halves: Vec<_> = minutes.iter().map(|minute| minute.mean(&half)).collect();
    let mosts: Vec<_> = minutes.iter().map(|minute| minute.most(&most)).collect();
    let top = mosts.iter().flatten().copied().fold(0.0, f64::max);
    let last =
        |values: &[Option<f64>]| values.iter().rev().find_map(|v| *v).map_or_else(|| "–".to_owned(), super::page::span);
    let legend = html! {
        span.key.accent { "half within " (last(&halves)) } span.key.soft { "95 % within " (last(&mosts)) }
    };
    let said = format!("half within {}, 95 of 100 within {}", last(&halves), last(&mosts));
    let lines = html! { (line("soft", &mosts, top)) (line("accent", &halves, top)) (hits(&minutes, &mosts)) };
    figure(title, "", (top > 0.0).then(|| super::page::span(top)), &said, &legend, &lines)
}

/// One value over the hour.
pub(super) fn level(
    title: &str,
    points: &[Point],
    unit: impl Fn(f64) -> String,
    of: impl Fn(&Point) -> Option<f64>,
) -> Markup {
    let minutes = minutes(points);
    let values: Vec<_> = minutes.iter().map(|minute| minute.most(&of)).collect();
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    let now = points.iter().rev().find_map(&of);
    let now = now.map_or_else(|| "–".to_owned(), &unit);
    let legend = html! { span.key.accent { (now) " now" } };
    let lines = html! { (line("accent", &values, top)) };
    figure(title, "", (top > 0.0).then(|| unit(top)), &format!("{now} now"), &legend, &lines)
}

/// A line that is broken where nothing is known.
fn line(class: &str, values: &[Option<f64>], top: f64) -> Markup {
    let step = WIDTH / MINUTES as f64;
    let mut path = String::new();
    let mut open = false;
    for (place, value) in values.iter().enumerate() {
        let Some(value) = value else {
            open = false;
            continue;
        };
        let (x, y) = ((place as f64 + 0.5) * step, HEIGHT - 1.0 - value / top.max(f64::MIN_POSITIVE) * (HEIGHT - 3.0));
        // A point alone is a short line.
        let verb = if open { format!("L{} {}", round(x), round(y)) } else { format!("M{} {}h0.1", round(x), round(y)) };
        path.push_str(&verb);
        open = true;
    }
    html! { path class=(class) d=(path) {} }
}

fn hits(minutes: &[Minute<'_>], values: &[Option<f64>]) -> Markup {
    let step = WIDTH / MINUTES as f64;
    html! {
        @for (place, (minute, value)) in minutes.iter().zip(values).enumerate() {
            @if let Some(value) = value {
                g {
                    title { (minute.clock()) ": 95 % within " (super::page::span(*value)) }
                    rect.hit x=(round(place as f64 * step)) y="0" width=(step) height=(HEIGHT) {}
                }
            }
        }
    }
}

fn figure(title: &str, per: &str, top: Option<String>, said: &str, legend: &Markup, drawn: &Markup) -> Markup {
    html! {
        figure.card.chart {
            figcaption { strong { (title) } @if !per.is_empty() { " " small { (per) } } span.top-value { (top.as_deref().unwrap_or_default()) } }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label={ (title) ", last hour: " (said) } {
                line.base x1="0" x2=(WIDTH) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
                (drawn)
            }
            div.axis aria-hidden="true" { span { "1 h ago" } span { "now" } }
            div.legend { (legend) }
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(succeeded: u32, p95: Option<f64>) -> Point {
        Point {
            at: Timestamp::UNIX_EPOCH,
            webhooks: 0,
            succeeded,
            failed: 0,
            retried: 0,
            handler_p50: p95,
            handler_p95: p95,
            result_p50: None,
            result_p95: None,
            queue_depth: None,
            oldest_pending: None,
        }
    }

    #[test]
    fn the_hour_is_sixty_minutes_whose_last_is_now() {
        let points: Vec<_> = (0..14).map(|n| point(n, None)).collect();
        let sums: Vec<_> = minutes(&points).iter().map(|minute| minute.sum(|p| p.succeeded)).collect();
        assert_eq!((sums.len(), &sums[57..]), (60, &[1.0, 27.0, 63.0][..]));
        let full: Vec<_> = (0..360).map(|_| point(1, None)).collect();
        assert!(minutes(&full).iter().all(|minute| minute.sum(|p| p.succeeded) == 6.0));
    }

    #[test]
    fn a_chart_without_values_is_drawn_too() {
        for points in [vec![], vec![point(0, None)], vec![point(3, Some(0.0))], vec![point(1, Some(2.0)); 400]] {
            let drawn = results(&points).into_string()
                + &latency("Handlers", &points, |p| p.handler_p50, |p| p.handler_p95).into_string()
                + &level("Queue", &points, |n| n.to_string(), |p| p.queue_depth.map(|n| n as f64)).into_string();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        }
    }
}
