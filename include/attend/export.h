/* ATTEND_API: what the shared libraries export. All else in them is hidden. */
#ifndef ATTEND_EXPORT_H
#define ATTEND_EXPORT_H

#if defined(__GNUC__)
#define ATTEND_API __attribute__((visibility("default")))
#else
#define ATTEND_API
#endif

#endif
