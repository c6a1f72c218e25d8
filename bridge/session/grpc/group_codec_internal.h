// The messages between the processes of one trainer, to protobuf and back: one overload each way for each message.
#pragma once

#include "bascule/v1/session.pb.h"
#include "bridge/session/messages.h"

namespace bascule {

void Encode(const GroupJoin& join, v1::SessionMessage& message);
void Encode(const GroupWelcome& welcome, v1::SessionMessage& message);
void Encode(const GroupEnter& enter, v1::SessionMessage& message);
void Encode(const GroupLayout& layout, v1::SessionMessage& message);
void Encode(const GroupPlan& plan, v1::SessionMessage& message);
void Encode(const GroupPlanned& planned, v1::SessionMessage& message);
void Encode(const GroupSend& send, v1::SessionMessage& message);
void Encode(const GroupFetch& fetch, v1::SessionMessage& message);
void Encode(const GroupSent& sent, v1::SessionMessage& message);
void Encode(const GroupAgain& again, v1::SessionMessage& message);
void Encode(const GroupPacked& packed, v1::SessionMessage& message);
void Encode(const GroupOutcome& outcome, v1::SessionMessage& message);

// Each: DataLoss "bad_message".
Result<SessionMessage> Decode(const v1::GroupJoin& proto);
Result<SessionMessage> Decode(const v1::GroupWelcome& proto);
Result<SessionMessage> Decode(const v1::GroupEnter& proto);
Result<SessionMessage> Decode(const v1::GroupLayout& proto);
Result<SessionMessage> Decode(const v1::GroupPlan& proto);
Result<SessionMessage> Decode(const v1::GroupPlanned& proto);
Result<SessionMessage> Decode(const v1::GroupSend& proto);
Result<SessionMessage> Decode(const v1::GroupFetch& proto);
Result<SessionMessage> Decode(const v1::GroupSent& proto);
Result<SessionMessage> Decode(const v1::GroupAgain& proto);
Result<SessionMessage> Decode(const v1::GroupPacked& proto);
Result<SessionMessage> Decode(const v1::GroupOutcome& proto);

}  // namespace bascule
